"""Pictures from outside: opened by content within limits, upright, RGB, and cut as the model wants them."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from PIL import Image

from gspool.data.decode import MAX_BYTES, MAX_PIXELS, ImageTooLargeError, UnknownFormatError, open_image

if TYPE_CHECKING:
    from collections.abc import Callable

    from jaxtyping import UInt8
    from torch import Tensor

    from gspool.models import Embedder, Pixels

__all__ = ["MAX_BYTES", "MAX_PIXELS", "ImageTooLargeError", "UnknownFormatError", "open_image", "prepare"]


def prepare(image: Image.Image, model: Embedder) -> UInt8[Tensor, "3 H W"]:
    """Resize and cut a picture as the model wants it; a model made with ``normalise=False`` still has to normalise it.

    Example:
        >>> from gspool import Embedder
        >>> tuple(prepare(Image.new("RGB", (100, 50)), Embedder("resnet20", pooling="gap")).shape)
        (3, 32, 32)
    """
    return _transform(model.pixels)(image)


@lru_cache(maxsize=8)
def _transform(pixels: Pixels) -> Callable[[Any], Any]:
    return pixels.transform()
