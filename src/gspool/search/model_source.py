"""Load a trained model: the folder of a run, of a saved model, or a name of the Hugging Face hub."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from gspool.evaluation.verification import read_threshold
from gspool.models import Embedder
from gspool.models.device import chosen_device
from gspool.models.pixels import PixelNormalisation
from gspool.models.sharing import RUN_MODEL, model_place

if TYPE_CHECKING:
    from jaxtyping import UInt8
    from torch import Tensor

    from gspool.models import Embedded

PRECISIONS = {"float32": None, "bfloat16": torch.bfloat16, "float16": torch.float16}


def load_model(source: str | Path, device: str | torch.device | None = None) -> Embedder:
    """Load a model in evaluation mode onto a device; a GPU if there is one, unless given.

    Args:
        source: the folder of a run of ``gspool train``, a folder that `Embedder.save_pretrained` wrote, or
            ``owner/name`` of the Hugging Face hub.
        device: where to compute.

    Raises:
        ValueError: if there is no such model or device, the run has not finished, or its files are damaged.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = Embedder("resnet20", pooling="gap", dim=8).save_pretrained(folder)
        ...     load_model(folder, device="cpu").out_dim
        8
    """
    place = chosen_device(device)
    return Embedder.from_pretrained(model_place(source)).to(place).eval()


def match_threshold(source: str | Path) -> float | None:
    """Return the cosine from which two pictures count as the same, as calibrated for a model; None if it was not.

    It is the ``similarity`` in ``threshold.json``, in the folder of the run or of the saved model.

    Raises:
        ValueError: if the file is damaged.
    """
    folder = Path(source).expanduser()
    # The parent only of the model inside a run.
    for place in (folder, folder / RUN_MODEL, *([folder.parent] if folder.name == RUN_MODEL else [])):
        if (found := read_threshold(place)) is not None:
            return found
    return None


def fingerprint(model: Embedder) -> str:
    """Return 16 hexadecimal digits that two models share only if settings, preprocessing and weights are equal.

    Vectors of different models do not compare, so every file of vectors stores the fingerprint of its model.

    Example:
        >>> model = Embedder("resnet20", pooling="gap", dim=8)
        >>> before = fingerprint(model)
        >>> with torch.no_grad():
        ...     _ = next(model.head.parameters()).mul_(2)
        >>> len(before), fingerprint(model) == before
        (16, False)
    """
    settings = model.settings
    # Freezing changes training, not vectors.
    parts = {**settings._asdict(), "pixels": model.pixels.as_dict(), "freeze": None}
    digest = hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode())
    for name, value in sorted(model.state_dict().items()):
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        # Bytes, not numbers: numpy has no bfloat16.
        digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


@torch.inference_mode()
def embed_batch(model: Embedder, images: UInt8[Tensor, "B 3 H W"], precision: str = "float32") -> Embedded:
    """Embed prepared images in evaluation mode on the model's device, in mixed precision if asked; returns float32.

    Raises:
        ValueError: if there is no such precision.
    """
    place = next(model.parameters()).device
    if precision not in PRECISIONS:
        raise ValueError(f"precision is one of {', '.join(PRECISIONS)}, got {precision!r}")
    kind = PRECISIONS[precision]
    with evaluating(model), torch.autocast(place.type, dtype=kind or torch.bfloat16, enabled=kind is not None):
        return model.embed(as_input(model, images))


def default_precision(device: torch.device) -> str:
    """Return bfloat16 for a GPU that supports it, else float32."""
    return "bfloat16" if device.type == "cuda" and torch.cuda.is_bf16_supported() else "float32"


@contextmanager
def evaluating(model: Embedder) -> Iterator[None]:
    """Put a model into evaluation mode, and back into its former mode afterwards."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


def as_input(model: Embedder, images: UInt8[Tensor, "B 3 H W"]) -> Tensor:
    """Move images to the model's device, normalised if the model does not do that itself."""
    placed = images.to(next(model.parameters()).device)
    return placed if model.settings.normalise else PixelNormalisation(model.pixels).to(placed.device)(placed)
