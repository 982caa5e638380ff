"""Read pictures for a model: opened within limits by `gspool.data.decode`, then cropped as the model expects."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from PIL import Image

from gspool.data.decode import MAX_BYTES, MAX_PIXELS, open_image

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from jaxtyping import UInt8
    from torch import Tensor

    from gspool.models import Embedder, Pixels


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


def read_pixels(
    source: str | Path | bytes, model: Embedder, limits: Limits = LIMITS, name: str | None = None
) -> tuple[UInt8[Tensor, "3 H W"], tuple[int, int]]:
    """Open a picture and crop it for a model; return the pixels, and width and height of the upright picture.

    Raises:
        BrokenImageError: see `open_image`; nothing is decoded that is too large, or would be once it is resized.
    """
    image = open_image(source, shorter_side=model.pixels.resize, name=name, **limits._asdict())
    return prepare(image, model), image.size


def prepare(image: Image.Image, model: Embedder) -> UInt8[Tensor, "3 H W"]:
    """Resize and crop a picture as the model expects; a model with ``normalise=False`` still has to normalise it.

    Example:
        >>> from gspool import Embedder
        >>> tuple(prepare(Image.new("RGB", (100, 50)), Embedder("resnet20", pooling="gap")).shape)
        (3, 32, 32)
    """
    return _transform(model.pixels)(image)


@lru_cache(maxsize=8)
def _transform(pixels: Pixels) -> Callable[[Any], Any]:
    return pixels.transform()
