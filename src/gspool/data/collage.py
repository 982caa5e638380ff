"""Cifar Collage: an object of CIFAR-100 among three images of classes that all labels share (Supp. 2.2).

The text says "4x4-stitched"; its figure and the authors' reference implementation stitch 2 x 2 tiles of 32 pixels.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch

from gspool.data.image_set import ImageSet, Split
from gspool.data.seeds import checked_seed
from gspool.data.super_classes import pools

if TYPE_CHECKING:
    from jaxtyping import Int64, UInt8
    from torch import Generator, Tensor

TILE = 32


class CollageImages:
    """Collages stitched when they are asked for: a quarter holds the object, the other three a background each."""

    def __init__(
        self,
        tiles: UInt8[Tensor, "T 3 32 32"],
        objects: Int64[Tensor, " N"],
        backgrounds: Int64[Tensor, "N 3"],
        places: Int64[Tensor, " N"],
    ) -> None:
        self.tiles = tiles
        self.quarters = torch.empty(len(objects), 4, dtype=torch.int64)
        is_object = torch.nn.functional.one_hot(places, 4).bool()
        self.quarters[is_object] = objects
        self.quarters[~is_object] = backgrounds.flatten()

    def __len__(self) -> int:
        return len(self.quarters)

    def __getitem__(self, index: int) -> UInt8[Tensor, "3 64 64"]:
        quarters = self.tiles[self.quarters[index]].view(2, 2, 3, TILE, TILE)
        return quarters.permute(2, 0, 3, 1, 4).reshape(3, 2 * TILE, 2 * TILE)

    def describe(self, index: int) -> str:
        """Give the rows of CIFAR-100 that the collage is made of."""
        return f"collage {index} of CIFAR-100 images {self.quarters[index].tolist()}"


def collage(root: Path, split: Split, *, seed: int = 0, download: bool = False) -> ImageSet:
    """Stitch one collage for every image of the 16 labelled super-classes: 19,200 to train and to test, 9,600 between.

    Another ``seed`` stitches the same objects with other backgrounds in other places.

    Raises:
        FileNotFoundError: if CIFAR-100 is not under ``root``.
        ValueError: if it is damaged or incomplete, or the seed out of range.
    """
    checked_seed(seed)
    pool = pools(root, split, download=download)
    generator = torch.Generator().manual_seed(seed)
    count = len(pool.objects)
    places = torch.randint(4, (count,), generator=generator)
    chosen = pool.backgrounds[_triples(count, len(pool.backgrounds), generator)]
    images = CollageImages(pool.tiles, pool.objects, chosen, places)
    return ImageSet(images, pool.labels, pool.class_names, name="collage", split=split, foreground=places)


def _triples(count: int, pool: int, generator: Generator) -> Int64[Tensor, "N 3"]:
    """Deal three backgrounds at a time from a shuffled pool, shuffled anew when it runs out: all are used alike."""
    if pool < 3:
        raise ValueError(f"a collage needs three different backgrounds, the shared classes have {pool} images")
    deals = [
        torch.randperm(pool, generator=generator)[: pool // 3 * 3].view(-1, 3) for _ in range(-(-count // (pool // 3)))
    ]
    return torch.cat(deals)[:count]
