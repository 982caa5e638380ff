"""Sources of images: files, an array in memory, a selection of another source."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import torch

from gspool.data.decode import decode, printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxtyping import Int64, UInt8
    from torch import Tensor


@runtime_checkable
class ImageSource(Protocol):
    """The interface that an `ImageSet` needs of its images."""

    def __len__(self) -> int:
        """Return the number of images."""
        ...

    def __getitem__(self, index: int) -> Tensor:
        """Return one image, uint8 [3, H, W]."""
        ...

    def describe(self, index: int) -> str:
        """Return a name that helps to find one image."""
        ...


def selected(source: ImageSource) -> tuple[Any, Int64[Tensor, " N"]]:
    """Return the source that a selection reads from, and the rows that it reads; of another source, all of them."""
    if isinstance(source, SelectedImages):
        return source.source, source.indices
    return source, torch.arange(len(source))


class FileImages:
    """Images in files, decoded on access.

    Example:
        >>> FileImages([Path("bird.jpg")]).describe(0)
        'bird.jpg'
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = tuple(Path(path) for path in paths)

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> UInt8[Tensor, "3 H W"]:
        return decode(self.paths[index])

    def describe(self, index: int) -> str:
        """Return the path, in printable form."""
        return printable(self.paths[index])


class ArrayImages:
    """Images of one size in memory; grey ones are stored in one channel and returned in three.

    Raises:
        ValueError: if the pixels are not uint8 [N, 1, H, W] or [N, 3, H, W].

    Example:
        >>> images = ArrayImages(torch.zeros(5, 1, 8, 8, dtype=torch.uint8), "blank")
        >>> len(images), tuple(images[4].shape), images.describe(4)
        (5, (3, 8, 8), 'blank 4')
    """

    def __init__(self, pixels: UInt8[Tensor, "N C H W"], kind: str = "image") -> None:
        if pixels.dtype != torch.uint8 or pixels.ndim != 4 or pixels.shape[1] not in (1, 3):
            raise ValueError(
                f"pixels must be uint8 of shape [N, 3, H, W], or [N, 1, H, W] for grey images, "
                f"got {pixels.dtype} of shape {tuple(pixels.shape)}"
            )
        self.pixels = pixels
        self.kind = kind

    def __len__(self) -> int:
        return len(self.pixels)

    def __getitem__(self, index: int) -> UInt8[Tensor, "3 H W"]:
        return self.pixels[index].expand(3, -1, -1)

    def describe(self, index: int) -> str:
        """Return the kind of image and its row."""
        return f"{self.kind} {index}"


class SelectedImages:
    """Some images of another source, which keeps its one file list and its one cache.

    A selection of a selection reads from the first source directly.
    """

    def __init__(self, source: ImageSource, indices: Int64[Tensor, " N"]) -> None:
        self.source, rows = selected(source)
        self.indices: Int64[Tensor, " N"] = rows[indices]

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> UInt8[Tensor, "3 H W"]:
        return self.source[int(self.indices[index])]

    def describe(self, index: int) -> str:
        """Return the name of the image in its source."""
        return self.source.describe(int(self.indices[index]))
