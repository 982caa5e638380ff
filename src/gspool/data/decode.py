"""From a file to pixels: open by content, as a person would see it, uint8 RGB."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from PIL import Image, ImageOps

if TYPE_CHECKING:
    from jaxtyping import UInt8
    from torch import Tensor

# Named one by one: Pillow knows some forty formats, and pictures from outside should not reach parsers nobody needs.
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP")
Interpolation = Literal["bilinear", "bicubic"]
IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp")

# EXIF orientations that turn a picture on its side (5 to 8 of the standard).
_SIDEWAYS = frozenset({5, 6, 7, 8})
_ORIENTATION_TAG = 0x0112
_RESAMPLING = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}


class BrokenImageError(ValueError):
    """An image that is missing, or is not a picture; the message names it and says what is wrong."""


def size_after_resize(width: int, height: int, shorter_side: int | None) -> tuple[int, int]:
    """Give (width, height) once the shorter side has the asked length and the shape is kept.

    Example:
        >>> size_after_resize(400, 300, 256)
        (341, 256)
    """
    if shorter_side is None:
        return width, height
    if width <= height:
        return shorter_side, max(int(shorter_side * height / width), 1)
    return max(int(shorter_side * width / height), 1), shorter_side


def stored_size(path: Path, shorter_side: int | None = None) -> tuple[int, int]:
    """Read (width, height) of the decoded image from the head of the file, without decoding it.

    Raises:
        BrokenImageError: if there is no such file or it does not begin like an image.
    """
    try:
        with Image.open(path, formats=FORMATS) as image:
            width, height = image.size
            # Asked for EXIF that did not come at its head, a PNG would be decoded in search of it.
            has_exif = image.format != "PNG" or "exif" in image.info
            if has_exif and image.getexif().get(_ORIENTATION_TAG) in _SIDEWAYS:
                width, height = height, width
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as problem:
        raise BrokenImageError(f"{path}: {reason(path, problem)}") from problem
    return size_after_resize(width, height, shorter_side)


def decode(
    path: Path, shorter_side: int | None = None, interpolation: Interpolation = "bilinear"
) -> UInt8[Tensor, "3 H W"]:
    """Decode a JPEG, PNG or WebP file, whatever its name says, to RGB, upright, on white where it is transparent.

    With ``shorter_side`` it is resized so, with antialiasing; bilinear is the first step of the paper's augmentation.
    The tensor is a channels-last view: what a decoder writes and what resizing reads fastest.

    Raises:
        BrokenImageError: if the file is missing, truncated or no image; the message names it.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     Image.new("L", (400, 300), 7).save(Path(folder) / "grey.png")
        ...     image = decode(Path(folder) / "grey.png", shorter_side=256)
        >>> image.dtype, tuple(image.shape), int(image.max())
        (torch.uint8, (3, 256, 341), 7)
    """
    try:
        with Image.open(path, formats=FORMATS) as file:
            image = as_rgb(ImageOps.exif_transpose(file))
            size = size_after_resize(*image.size, shorter_side)
            if size != image.size:
                image = image.resize(size, _RESAMPLING[interpolation])
            pixels = np.array(image)
    except (OSError, SyntaxError, ValueError, EOFError, Image.DecompressionBombError) as problem:
        raise BrokenImageError(f"{path}: {reason(path, problem)}") from problem
    return torch.from_numpy(pixels).permute(2, 0, 1)


def as_rgb(image: Image.Image) -> Image.Image:
    """Bring any mode of picture to RGB without losing what it shows."""
    if image.mode == "RGB" and "transparency" not in image.info:
        return image
    if image.mode in ("I", "F") or image.mode.startswith("I;16"):
        # Pillow clips 16-bit grey at 255 instead of scaling it: almost every such picture would come out white.
        return Image.fromarray(
            (np.asarray(image, dtype=np.float64) / 257).clip(0, 255).round().astype(np.uint8)
        ).convert("RGB")
    if "A" in image.mode or "a" in image.mode or "transparency" in image.info:
        seen = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", seen.size, "white"), seen).convert("RGB")
    return image.convert("RGB")


def reason(path: Path, problem: BaseException) -> str:
    """Say in words why a file could not be opened as an image."""
    if isinstance(problem, FileNotFoundError):
        return "there is no such file"
    if isinstance(problem, IsADirectoryError):
        return "this is a folder, not an image"
    if Path(path).is_file() and Path(path).stat().st_size == 0:
        return "the file is empty"
    if isinstance(problem, Image.UnidentifiedImageError):
        return f"the content is not one of {', '.join(FORMATS)}"
    return f"damaged or unreadable ({problem})"
