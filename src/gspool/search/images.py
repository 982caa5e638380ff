"""Pictures from outside: opened by content within limits, upright, RGB, and cut as the model wants them."""

from __future__ import annotations

import io
import os
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image, ImageOps

from gspool.data.decode import FORMATS, BrokenImageError, as_rgb, reason

if TYPE_CHECKING:
    from collections.abc import Callable

    from jaxtyping import UInt8
    from torch import Tensor

    from gspool.models import Embedder, Pixels

MAX_BYTES = 64 * 2**20
# Below the size at which Pillow itself begins to warn of decompression bombs, so that our answer comes first.
MAX_PIXELS = 80_000_000


class ImageTooLargeError(BrokenImageError):
    """A picture of more bytes or pixels than are allowed; nothing of it has been decoded."""


class UnknownFormatError(BrokenImageError):
    """Content that is no picture, or a picture of a format that is not read."""


def open_image(
    source: str | Path | bytes, *, max_bytes: int = MAX_BYTES, max_pixels: int = MAX_PIXELS, name: str | None = None
) -> Image.Image:
    """Decode a file, or the bytes of one, to RGB, upright, on white where it is transparent.

    The content decides the format (JPEG, PNG, WebP, GIF or BMP), never the name. Bytes are counted before anything is
    read and pixels before anything is decoded.

    Args:
        source: a path, or the bytes of a file.
        max_bytes: the largest file to read.
        max_pixels: the largest picture to decode, width times height.
        name: what messages call it; its path, unless given.

    Raises:
        ImageTooLargeError: if it is larger than allowed.
        UnknownFormatError: if it is not one of the formats.
        BrokenImageError: if it is missing, no regular file, truncated or damaged.

    Example:
        >>> buffer = io.BytesIO()
        >>> Image.new("L", (40, 30), 7).save(buffer, "PNG")
        >>> picture = open_image(buffer.getvalue())
        >>> picture.mode, picture.size
        ('RGB', (40, 30))
    """
    name = name or ("this upload" if isinstance(source, bytes) else str(source))
    _check_bytes(source, name, max_bytes)
    try:
        with Image.open(io.BytesIO(source) if isinstance(source, bytes) else source, formats=FORMATS) as file:
            width, height = file.size
            if width * height > max_pixels:
                raise ImageTooLargeError(
                    f"{name}: {width} x {height} pixels, at most {max_pixels:,} in all are read; make it smaller"
                )
            image = as_rgb(ImageOps.exif_transpose(file))
            # Some modes come through without a copy: the pixels must be there before the file is closed.
            image.load()
            return image
    except BrokenImageError:
        raise
    except Image.UnidentifiedImageError as problem:
        raise UnknownFormatError(f"{name}: the content is not one of {', '.join(FORMATS)}") from problem
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as problem:
        raise ImageTooLargeError(f"{name}: more than {max_pixels:,} pixels; make it smaller") from problem
    # Whatever else a decoder makes of damaged bytes is about the picture, not about the program.
    except (OSError, SyntaxError, ValueError, EOFError, TypeError, OverflowError, MemoryError) as problem:
        why = f"damaged ({problem})" if isinstance(source, bytes) else reason(Path(source), problem)
        raise BrokenImageError(f"{name}: {why}") from problem


def _check_bytes(source: str | Path | bytes, name: str, max_bytes: int) -> None:
    """Refuse what is too large or no regular file, before it is opened: a pipe would be waited for without end."""
    if isinstance(source, bytes):
        size = len(source)
    else:
        path = Path(source)
        if path.exists() and not path.is_file():
            what = "this is a folder, not an image" if path.is_dir() else "this is no regular file"
            raise BrokenImageError(f"{name}: {what}")
        size = os.stat(path).st_size if path.exists() else 0
        if path.exists() and size == 0:
            raise BrokenImageError(f"{name}: the file is empty")
    if size > max_bytes:
        raise ImageTooLargeError(
            f"{name}: {size / 2**20:.1f} MiB, at most {max_bytes / 2**20:.1f} MiB are read; make it smaller"
        )


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
