"""A trained model and its pictures: load it, tell it from others, open and crop pictures for it, embed them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from gspool.data.decode import MAX_BYTES, MAX_PIXELS, open_image
from gspool.evaluation.verification import read_threshold
from gspool.models import Embedder
from gspool.models.device import chosen_device, computes_bf16, laid_out_for
from gspool.models.freezing import evaluating
from gspool.models.pixels import PixelNormalisation
from gspool.models.sharing import RUN_MODEL, model_place

if TYPE_CHECKING:
    from jaxtyping import UInt8
    from PIL.Image import Image
    from torch import Tensor

    from gspool.models import Embedded, Pixels

PRECISIONS = {"float32": None, "bfloat16": torch.bfloat16, "float16": torch.float16}


class Limits(NamedTuple):
    """The largest file, in bytes, and the largest picture, in pixels (width times height), that are read."""

    max_bytes: int = MAX_BYTES
    max_pixels: int = MAX_PIXELS

    def check(self) -> Limits:
        """Return the same limits.

        Raises:
            ValueError: if one is not positive.
        """
        for name, value in zip(self._fields, self, strict=True):
            if value < 1:
                raise ValueError(f"{name} must be positive, got {value}")
        return self


LIMITS = Limits()


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
    # Freezing changes training, not vectors.
    parts = {**model.settings._asdict(), "pixels": model.pixels.as_dict(), "freeze": None}
    digest = hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode())
    for name, value in sorted(model.state_dict().items()):
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        # Bytes, not numbers: numpy has no bfloat16.
        digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def read_pixels(
    source: str | Path | bytes, model: Embedder, limits: Limits = LIMITS, name: str | None = None
) -> tuple[UInt8[Tensor, "3 H W"], tuple[int, int]]:
    """Open a picture and crop it for a model, see `open_image`; return the pixels, and its upright width and height."""
    image = open_image(source, shorter_side=model.pixels.resize, name=name, **limits._asdict())
    return prepare(image, model), image.size


def prepare(image: Image, model: Embedder) -> UInt8[Tensor, "3 H W"]:
    """Resize and crop a picture as the model expects; a model with ``normalise=False`` still has to normalise it.

    Example:
        >>> from PIL import Image
        >>> tuple(prepare(Image.new("RGB", (100, 50)), Embedder("resnet20", pooling="gap")).shape)
        (3, 32, 32)
    """
    return _transform(model.pixels)(image)


@lru_cache(maxsize=8)
def _transform(pixels: Pixels) -> Callable[[Any], Any]:
    return pixels.transform()


@torch.inference_mode()
def embed_batch(model: Embedder, images: UInt8[Tensor, "B 3 H W"], precision: str = "float32") -> Embedded:
    """Embed prepared images in evaluation mode on the model's device, in mixed precision if asked; returns float32."""
    place = next(model.parameters()).device
    if precision not in PRECISIONS:
        raise ValueError(f"precision is one of {', '.join(PRECISIONS)}, got {precision!r}")
    kind = PRECISIONS[precision]
    with evaluating(model), torch.autocast(place.type, dtype=kind or torch.bfloat16, enabled=kind is not None):
        return model.embed(laid_out_for(model, as_input(model, images)))


def default_precision(device: torch.device) -> str:
    """Return bfloat16 for a device that computes in it, else float32."""
    return "bfloat16" if computes_bf16(device) else "float32"


def as_input(model: Embedder, images: UInt8[Tensor, "B 3 H W"]) -> Tensor:
    """Move images to the model's device, normalised if the model does not do that itself."""
    placed = images.to(next(model.parameters()).device)
    return placed if model.settings.normalise else PixelNormalisation(model.pixels).to(placed.device)(placed)
