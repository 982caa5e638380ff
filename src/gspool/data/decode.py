"""Image files to pixels: opened by content and within limits, upright, uint8 RGB.

Everything that reads a picture (training, evaluation, search, the web page) goes through `open_image`.
"""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Literal

import numpy as np
import torch
from PIL import ExifTags, Image, ImageOps

if TYPE_CHECKING:
    from jaxtyping import UInt8
    from torch import Tensor

# Named one by one: Pillow knows some forty formats, and untrusted files should not reach parsers nobody needs.
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP")
IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp")
Interpolation = Literal["bilinear", "bicubic"]

MAX_BYTES = 256 * 2**20
# Below the size at which Pillow warns of decompression bombs, so that our message comes first.
MAX_PIXELS = 80_000_000
# After resizing. A file of 1 kB can hold 1 x 500,000 pixels; with a shorter side of 256 they would be 33 billion.
MAX_RESIZED = 25_000_000
# The resize that is checked where the caller does not name one: the first step of the paper's transforms.
USUAL_SIDE = 256

# EXIF orientations that turn a picture on its side (5 to 8 of the standard).
_SIDEWAYS = frozenset({5, 6, 7, 8})
_RESAMPLING = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}
# A PNG without any of these has no orientation, neither before its pixels nor after them.
_TURN_PNG = (b"eXIf", b"adobe.xmp", b"type exif")
# Pixels converted at a time where a mode needs several temporary copies.
_BAND = 1 << 20


class BrokenImageError(ValueError):
    """An image that is missing, damaged or refused; the message names it and gives the reason."""


class ImageTooLargeError(BrokenImageError):
    """An image with more bytes or pixels than allowed; nothing of it has been decoded."""


class UnknownFormatError(BrokenImageError):
    """Content that is not an image of one of `FORMATS`."""


def open_image(
    source: str | os.PathLike[str] | bytes,
    *,
    shorter_side: int | None = None,
    max_bytes: int = MAX_BYTES,
    max_pixels: int = MAX_PIXELS,
    name: str | None = None,
) -> Image.Image:
    """Decode a file, or the bytes of one, to an upright RGB image; transparent areas become white.

    The content decides the format, never the name. Limits are checked before anything is decoded, so peak memory is
    about 12 bytes a pixel of ``max_pixels``. Only regular files are opened: a pipe or a device could block for ever.

    Args:
        source: a path, or the content of a file.
        shorter_side: what the caller will resize the shorter side to; `USUAL_SIDE` unless given. An image with
            more than `MAX_RESIZED` pixels after that is refused; the one that is returned is not resized.
        max_bytes: largest file.
        max_pixels: largest image, width times height.
        name: how messages call the image; its path unless given.

    Raises:
        ImageTooLargeError: if it exceeds a limit.
        UnknownFormatError: if it is empty, or not a JPEG, PNG, WebP, GIF or BMP image.
        BrokenImageError: if it is missing, not a regular file, truncated or damaged.

    Example:
        >>> buffer = io.BytesIO()
        >>> Image.new("L", (40, 30), 7).save(buffer, "PNG")
        >>> picture = open_image(buffer.getvalue())
        >>> picture.mode, picture.size
        ('RGB', (40, 30))
    """
    with _opened(source, name, shorter_side, max_bytes, max_pixels) as file:
        # In place: otherwise Pillow copies every image, also those that are upright already.
        ImageOps.exif_transpose(file, in_place=True)
        image = as_rgb(file)
        image.load()
        return image


def decode(
    source: str | os.PathLike[str] | bytes,
    shorter_side: int | None = None,
    interpolation: Interpolation = "bilinear",
    name: str | None = None,
) -> UInt8[Tensor, "3 H W"]:
    """Decode a file, or the bytes of one, to RGB within the limits of `open_image`, and resize its shorter side.

    Resizing is antialiased; bilinear is the first step of the paper's augmentation. The tensor is a channels-last view,
    which is what decoders write and what resizing reads fastest.

    Raises:
        BrokenImageError: if the file is missing, damaged, too large or not an image.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     Image.new("L", (400, 300), 7).save(f"{folder}/grey.png")
        ...     image = decode(f"{folder}/grey.png", shorter_side=256)
        >>> image.dtype, tuple(image.shape), int(image.max())
        (torch.uint8, (3, 256, 341), 7)
    """
    image = open_image(source, shorter_side=shorter_side, name=name)
    size = size_after_resize(*image.size, shorter_side)
    if size != image.size:
        image = image.resize(size, _RESAMPLING[interpolation])
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


def stored_size(path: str | os.PathLike[str], shorter_side: int | None = None) -> tuple[int, int]:
    """Read (width, height) that `decode` would return, where possible without decoding the file."""
    with _opened(path, None, shorter_side, MAX_BYTES, MAX_PIXELS) as image:
        width, height = image.size
        if image.format == "PNG":
            # What turns it may follow its pixels, where Pillow finds it by decoding.
            content = Path(path).read_bytes()
            if any(mark in content for mark in _TURN_PNG):
                width, height = open_image(path, shorter_side=shorter_side).size
        elif image.getexif().get(ExifTags.Base.Orientation) in _SIDEWAYS:
            width, height = height, width
    return size_after_resize(width, height, shorter_side)


def size_after_resize(width: int, height: int, shorter_side: int | None) -> tuple[int, int]:
    """Compute (width, height) after the shorter side is resized and the aspect ratio kept.

    Example:
        >>> size_after_resize(400, 300, 256)
        (341, 256)
    """
    if shorter_side is None:
        return width, height
    if width <= height:
        return shorter_side, max(int(shorter_side * height / width), 1)
    return max(int(shorter_side * width / height), 1), shorter_side


def as_rgb(image: Image.Image) -> Image.Image:
    """Convert an image of any mode to RGB: transparency on white, 16-bit grey scaled to 8 bits."""
    transparent = "A" in image.mode or "a" in image.mode or "transparency" in image.info
    deep = image.mode in ("I", "F") or image.mode.startswith("I;16")
    if not transparent and not deep:
        return image if image.mode == "RGB" else image.convert("RGB")
    result = Image.new("RGB", image.size)
    rows = max(_BAND // image.width, 1)
    for top in range(0, image.height, rows):
        band = image.crop((0, top, image.width, min(top + rows, image.height)))
        if deep:
            # Pillow clips 16-bit grey at 255 instead of scaling it: almost every such picture would come out white.
            grey = (np.asarray(band, dtype=np.float64) / 257).clip(0, 255).round().astype(np.uint8)
            result.paste(Image.fromarray(grey).convert("RGB"), (0, top))
        else:
            layer = band.convert("RGBA")
            result.paste(Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer).convert("RGB"), (0, top))
    return result


def printable(path: str | os.PathLike[str]) -> str:
    r"""Return a path as text that can be printed: bytes that are not UTF-8 become escapes.

    Example:
        >>> printable("caf\udce9.jpg")
        'caf\\xe9.jpg'
    """
    return os.fsencode(path).decode("utf-8", "backslashreplace")


@contextmanager
def _opened(
    source: str | os.PathLike[str] | bytes,
    name: str | None,
    shorter_side: int | None,
    max_bytes: int,
    max_pixels: int,
) -> Iterator[Image.Image]:
    """Open an image within limits; whatever goes wrong in here becomes a `BrokenImageError`."""
    name = name or ("this image" if isinstance(source, bytes) else printable(source))
    try:
        with _stream(source, name, max_bytes) as stream, Image.open(stream, formats=FORMATS) as image:
            _check_pixels(name, *image.size, shorter_side or USUAL_SIDE, max_pixels)
            yield image
    except BrokenImageError:
        raise
    except Image.UnidentifiedImageError as problem:
        raise UnknownFormatError(f"{name}: the content is not one of {', '.join(FORMATS)}") from problem
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as problem:
        raise ImageTooLargeError(f"{name}: more than {max_pixels:,} pixels; make it smaller") from problem
    except Exception as problem:  # damaged bytes make parsers raise nearly anything
        # The text of an OSError has a path, which whoever passed a name may not want to tell.
        reason = getattr(problem, "strerror", None) or problem
        raise BrokenImageError(f"{name}: damaged or unreadable ({reason})") from problem


def _stream(source: str | os.PathLike[str] | bytes, name: str, max_bytes: int) -> IO[bytes]:
    """Open the bytes, or the regular file of that name, unless there are too many."""
    if isinstance(source, bytes):
        size = len(source)
    else:
        try:
            state = os.stat(source)
        except FileNotFoundError as problem:
            own = name == printable(source)
            link = f", this is a link to {printable(os.readlink(source))}" if own and os.path.islink(source) else ""
            raise BrokenImageError(f"{name}: there is no such file{link}") from problem
        except (OSError, ValueError) as problem:  # ValueError: a null character in the path
            raise BrokenImageError(f"{name}: {getattr(problem, 'strerror', None) or problem}") from problem
        if not stat.S_ISREG(state.st_mode):
            kind = "a folder, not an image" if stat.S_ISDIR(state.st_mode) else "not a regular file"
            raise BrokenImageError(f"{name}: this is {kind}")
        size = state.st_size
        if size == 0:
            raise UnknownFormatError(f"{name}: the file is empty")
    if size > max_bytes:
        raise ImageTooLargeError(
            f"{name}: {size / 2**20:.1f} MiB, at most {max_bytes / 2**20:.1f} MiB are read; make it smaller"
        )
    if isinstance(source, bytes):
        return io.BytesIO(source)
    # Not blocking: the file may have been replaced by a pipe since it was looked at.
    return open(source, "rb", opener=lambda path, flags: os.open(path, flags | getattr(os, "O_NONBLOCK", 0)))


def _check_pixels(name: str, width: int, height: int, side: int, max_pixels: int) -> None:
    if min(width, height) < 1:
        raise BrokenImageError(f"{name}: damaged ({width} x {height} pixels)")
    if width * height > max_pixels:
        raise ImageTooLargeError(
            f"{name}: {width} x {height} pixels, at most {max_pixels:,} in all are read; make it smaller"
        )
    resized_width, resized_height = size_after_resize(width, height, side)
    if resized_width * resized_height > MAX_RESIZED:
        raise ImageTooLargeError(
            f"{name}: {width} x {height} pixels are too long and narrow: resized to {side} on the shorter side they "
            f"would be {resized_width:,} x {resized_height:,}, at most {MAX_RESIZED:,} pixels in all; crop it"
        )
