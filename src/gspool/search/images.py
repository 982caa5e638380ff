"""Read pictures from outside: open by content within limits, upright and RGB, then crop as the model expects."""

from __future__ import annotations

import io
import os
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from PIL import Image, ImageOps

from gspool.data.decode import FORMATS, BrokenImageError, as_rgb, reason, size_after_resize

if TYPE_CHECKING:
    from collections.abc import Callable

    from jaxtyping import UInt8
    from torch import Tensor

    from gspool.models import Embedder, Pixels

MAX_BYTES = 64 * 2**20
# Below the size at which Pillow itself warns of decompression bombs, so that our message comes first.
MAX_PIXELS = 80_000_000


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


class ImageTooLargeError(BrokenImageError):
    """A picture with more bytes or pixels than allowed; it was not decoded."""


class UnknownFormatError(BrokenImageError):
    """Content that is not a picture, or a picture of another format."""


def open_image(
    source: str | Path | bytes, *, max_bytes: int = MAX_BYTES, max_pixels: int = MAX_PIXELS, name: str | None = None
) -> Image.Image:
    """Decode a file, or the bytes of one, to RGB, upright, on white where it is transparent.

    The content decides the format (JPEG, PNG, WebP, GIF or BMP), not the name. Bytes are counted before the file is
    read, and pixels before it is decoded.

    Args:
        source: a path, or the bytes of a file.
        max_bytes: the largest file to read.
        max_pixels: the largest picture to decode, width times height.
        name: its name in messages; the path unless given.

    Raises:
        ImageTooLargeError: if it is larger than allowed.
        UnknownFormatError: if it is not one of the formats.
        BrokenImageError: if it is missing, not a regular file, truncated or damaged.

    Example:
        >>> buffer = io.BytesIO()
        >>> Image.new("L", (40, 30), 7).save(buffer, "PNG")
        >>> picture = open_image(buffer.getvalue())
        >>> picture.mode, picture.size
        ('RGB', (40, 30))
    """
    name = name or _name(source)
    try:
        _check_file(source, name, max_bytes)
        with Image.open(io.BytesIO(source) if isinstance(source, bytes) else source, formats=FORMATS) as file:
            width, height = file.size
            if width * height > max_pixels:
                raise ImageTooLargeError(
                    f"{name}: {width} x {height} pixels; the limit is {max_pixels:,} in all, make it smaller"
                )
            image = as_rgb(ImageOps.exif_transpose(file))
            # Some modes come through without a copy: load the pixels before the file is closed.
            image.load()
            return image
    except BrokenImageError:
        raise
    except Image.UnidentifiedImageError as problem:
        raise UnknownFormatError(f"{name}: the content is not one of {', '.join(FORMATS)}") from problem
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as problem:
        raise ImageTooLargeError(f"{name}: more than {max_pixels:,} pixels; make it smaller") from problem
    # A decoder may raise anything on damaged bytes: the picture is at fault, not the program.
    except Exception as problem:
        why = f"damaged ({problem})" if isinstance(source, bytes) else reason(Path(source), problem)
        raise BrokenImageError(f"{name}: {why}") from problem


def _check_file(source: str | Path | bytes, name: str, max_bytes: int) -> None:
    """Refuse what is too large or not a regular file before it is opened: opening a pipe would wait for ever."""
    if isinstance(source, bytes):
        size = len(source)
    else:
        path = Path(source)
        if path.exists() and not path.is_file():
            raise BrokenImageError(f"{name}: {'a folder, not an image' if path.is_dir() else 'not a regular file'}")
        size = os.stat(path).st_size
        if size == 0:
            raise BrokenImageError(f"{name}: the file is empty")
    if size > max_bytes:
        raise ImageTooLargeError(
            f"{name}: {size / 2**20:.1f} MiB; the limit is {max_bytes / 2**20:.1f} MiB, make it smaller"
        )


def prepare(image: Image.Image, model: Embedder, max_pixels: int = MAX_PIXELS) -> UInt8[Tensor, "3 H W"]:
    """Resize and crop a picture as the model expects; a model with ``normalise=False`` still has to normalise it.

    Raises:
        ImageTooLargeError: if the picture is so narrow that resizing its shorter side would make more than
            ``max_pixels`` pixels; nothing is resized then.

    Example:
        >>> from gspool import Embedder
        >>> tuple(prepare(Image.new("RGB", (100, 50)), Embedder("resnet20", pooling="gap")).shape)
        (3, 32, 32)
    """
    width, height = size_after_resize(*image.size, model.pixels.resize)
    if width * height > max_pixels:
        raise ImageTooLargeError(
            f"{image.width} x {image.height} pixels would be resized to {width} x {height}; the limit is "
            f"{max_pixels:,} pixels, crop it"
        )
    return _transform(model.pixels)(image)


def read_pixels(
    source: str | Path | bytes, model: Embedder, limits: Limits = LIMITS, name: str | None = None
) -> tuple[UInt8[Tensor, "3 H W"], tuple[int, int]]:
    """Open a picture and crop it for a model; return the pixels, and width and height of the upright picture.

    Raises:
        BrokenImageError: as `open_image` and `prepare`; the message begins with the name.
    """
    name = name or _name(source)
    image = open_image(source, max_bytes=limits.max_bytes, max_pixels=limits.max_pixels, name=name)
    try:
        return prepare(image, model, limits.max_pixels), image.size
    except ImageTooLargeError as problem:
        raise ImageTooLargeError(f"{name}: {problem}") from problem


def _name(source: str | Path | bytes) -> str:
    return "this upload" if isinstance(source, bytes) else str(source)


@lru_cache(maxsize=8)
def _transform(pixels: Pixels) -> Callable[[Any], Any]:
    return pixels.transform()


def printable(path: str | Path) -> str:
    """Return a path as text: names on disk may hold any bytes.

    Example:
        >>> printable(os.fsdecode(bytes([255]) + b".png"))
        '\\\\xff.png'
    """
    return os.fsencode(path).decode(errors="backslashreplace")
