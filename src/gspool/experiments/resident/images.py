"""A data set decoded once into one tensor on the device."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import torch

from gspool.data.decode import stored_size
from gspool.data.image_source import ArrayImages, FileImages, SelectedImages
from gspool.terminal.bar import work_bar

if TYPE_CHECKING:
    from jaxtyping import Bool, Int64, UInt8
    from torch import Tensor

    from gspool.data import ImageSet


@dataclass(frozen=True, eq=False)
class ResidentSet:
    """Labelled images, or feature maps, on a device; cutting a set copies labels and never pixels.

    ``pixels`` holds every image in the upper left corner of a frame that fits all of them, ``sizes`` what of the frame
    each fills, ``rows`` which of them are in this set. ``asks`` marks the queries where the data has a gallery.

    Raises:
        ValueError: if the lengths disagree or a row is not there.

    Example:
        >>> pixels = torch.zeros(6, 3, 8, 8, dtype=torch.uint8)
        >>> birds = ResidentSet.of(pixels, torch.tensor([0, 0, 1, 1, 2, 2]))
        >>> part = birds.of_classes([0, 2])
        >>> part.rows.tolist(), part.labels.tolist(), part.num_classes
        ([0, 1, 4, 5], [0, 0, 1, 1], 2)
    """

    pixels: UInt8[Tensor, "P C H W"]
    sizes: Int64[Tensor, "P 2"]
    rows: Int64[Tensor, " N"]
    labels: Int64[Tensor, " N"]
    asks: Bool[Tensor, " N"] | None = None

    def __post_init__(self) -> None:
        for name in ("labels", "asks"):
            values = getattr(self, name)
            if values is not None and len(values) != len(self.rows):
                raise ValueError(f"{len(self.rows)} rows need as many {name}, got {len(values)}")
        if len(self.rows) == 0 or self.rows.min() < 0 or self.rows.max() >= len(self.pixels):
            raise ValueError(f"rows must name some of the {len(self.pixels)} images, got {len(self.rows)} rows")
        if tuple(self.sizes.shape) != (len(self.pixels), 2):
            raise ValueError(f"sizes must be [{len(self.pixels)}, 2], height and width, got {tuple(self.sizes.shape)}")

    @classmethod
    def of(
        cls, pixels: UInt8[Tensor, "N C H W"], labels: Int64[Tensor, " N"], asks: Bool[Tensor, " N"] | None = None
    ) -> ResidentSet:
        """Make a set of all of these images, or feature maps, each of which fills its frame."""
        rows = torch.arange(len(pixels), device=pixels.device)
        sizes = torch.tensor(pixels.shape[-2:], device=pixels.device).expand(len(pixels), 2)
        return cls(pixels, sizes, rows, labels.to(pixels.device), None if asks is None else asks.to(pixels.device))

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def num_classes(self) -> int:
        """How many classes the labels number."""
        return int(self.labels.max()) + 1

    @cached_property
    def rows_on_cpu(self) -> Int64[Tensor, " N"]:
        """``rows`` in the memory of the CPU: fetched once, so that no step has to ask the device and wait."""
        return self.rows.cpu()

    @cached_property
    def sizes_on_cpu(self) -> Int64[Tensor, "N 2"]:
        """Height and width of every image of this set, in its order, in the memory of the CPU."""
        return self.sizes[self.rows].cpu()

    def of_classes(self, classes: Iterable[int]) -> ResidentSet:
        """Give the images of these classes alone, numbered anew from 0 in their order.

        Raises:
            ValueError: if none of the images is of these classes.
        """
        kept = torch.tensor(sorted(set(classes)), dtype=torch.int64, device=self.labels.device)
        inside = torch.isin(self.labels, kept).nonzero().flatten()
        return replace(
            self,
            rows=self.rows[inside],
            labels=torch.searchsorted(kept, self.labels[inside]),
            asks=None if self.asks is None else self.asks[inside],
        )

    def to(self, device: torch.device | str) -> ResidentSet:
        """Give the set on another device."""
        return ResidentSet(
            pixels=self.pixels.to(device),
            sizes=self.sizes.to(device),
            rows=self.rows.to(device),
            labels=self.labels.to(device),
            asks=None if self.asks is None else self.asks.to(device),
        )


def load_resident(
    images: ImageSet,
    device: torch.device | str = "cpu",
    *,
    shorter_side: int | None = 256,
    longest: int = 384,
    workers: int = 8,
    progress: bool = False,
) -> ResidentSet:
    """Decode every image once, and lay all of them into one uint8 tensor on the device.

    Args:
        images: the data set; its transform is not used.
        device: where the pixels go.
        shorter_side: what the shorter side becomes (the first step of the paper's augmentation); None keeps sizes.
        longest: where an image is longer than this, its middle is taken; 384 keeps pictures of 3 : 2 whole.
        workers: threads that decode.
        progress: show a bar.

    Raises:
        ValueError: if the source of the images is neither files nor an array, or an image is broken.

    Example:
        >>> from gspool import data
        >>> letters = load_resident(data.create("glyphs", split="test", images_per_class=1), shorter_side=None)
        >>> letters.pixels.shape, letters.num_classes
        (torch.Size([100, 3, 64, 64]), 100)
    """
    asks = None if images.roles is None else torch.tensor([role == "query" for role in images.roles], device=device)
    labels = images.labels.to(device)
    source = images.images
    rows = source.indices if isinstance(source, SelectedImages) else torch.arange(len(source))
    whole = source.source if isinstance(source, SelectedImages) else source
    if isinstance(whole, ArrayImages):
        return ResidentSet.of(whole.pixels[rows].expand(-1, 3, -1, -1).to(device), labels, asks)
    if not isinstance(whole, FileImages):
        raise ValueError(f"images come from files or an array to be resident, got {type(whole).__name__}")
    files = FileImages([whole.paths[row] for row in rows.tolist()], shorter_side)
    sides = [stored_size(path, shorter_side) for path in files.paths]
    sizes = torch.tensor([(height, width) for width, height in sides]).clamp(max=longest)
    pixels = torch.zeros(len(files), 3, *sizes.amax(0).tolist(), dtype=torch.uint8)

    def place(row: int) -> None:
        image = files[row]
        height, width = sizes[row].tolist()
        top, left = (image.shape[1] - height) // 2, (image.shape[2] - width) // 2
        pixels[row, :, :height, :width] = image[:, top : top + height, left : left + width]

    with (
        ThreadPoolExecutor(max(workers, 1)) as pool,
        work_bar(f"decoding {images.name}/{images.split}", 0, len(files), progress, "images") as bar,
    ):
        for _ in pool.map(place, range(len(files))):
            bar.advance()
    return ResidentSet(pixels.to(device), sizes.to(device), torch.arange(len(files), device=device), labels, asks)
