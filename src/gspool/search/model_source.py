"""Find a trained model: the folder of a run, of a saved model, or a name of the Hugging Face hub."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from gspool.models import Embedder
from gspool.models.device import chosen_device
from gspool.models.sharing import model_place
from gspool.search.explain_image import as_input, evaluating

if TYPE_CHECKING:
    from gspool.models import Embedded

PRECISIONS = {"float32": None, "bfloat16": torch.bfloat16, "float16": torch.float16}


def load_model(source: str | Path, device: str | torch.device | None = None) -> Embedder:
    """Load a model in evaluation mode onto a device, a GPU where there is one unless told otherwise.

    Args:
        source: the folder of a run of ``gspool train``, a folder that `Embedder.save_pretrained` wrote, or
            ``owner/name`` of the Hugging Face hub.
        device: where it will compute.

    Raises:
        ValueError: if there is no such model, the run has not finished, its files are damaged, or there is no such
            device.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = Embedder("resnet20", pooling="gap", dim=8).save_pretrained(folder)
        ...     load_model(folder, device="cpu").out_dim
        8
    """
    place = chosen_device(device)
    return Embedder.from_pretrained(model_place(source)).to(place).eval()


def fingerprint(model: Embedder) -> str:
    """Give 16 hexadecimal digits that two models share only if settings, preprocessing and weights are equal.

    Vectors of different models do not compare, so every file of vectors carries the fingerprint of its model.

    Example:
        >>> model = Embedder("resnet20", pooling="gap", dim=8)
        >>> before = fingerprint(model)
        >>> with torch.no_grad():
        ...     _ = next(model.head.parameters()).mul_(2)
        >>> len(before), fingerprint(model) == before
        (16, False)
    """
    settings = model.settings
    # What was frozen in training changes no vector.
    parts = {**settings._asdict(), "pixels": model.pixels.as_dict(), "freeze": None}
    digest = hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode())
    for name, value in sorted(model.state_dict().items()):
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        # Bytes, not numbers: numpy has no bfloat16.
        digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


@torch.inference_mode()
def embed_batch(model: Embedder, images: torch.Tensor, precision: str = "float32") -> Embedded:
    """Embed prepared images in evaluation mode, where the model is, in mixed precision if asked; vectors are float32.

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
    """Choose bfloat16 on a GPU that computes in it, and float32 everywhere else."""
    return "bfloat16" if device.type == "cuda" and torch.cuda.is_bf16_supported() else "float32"
