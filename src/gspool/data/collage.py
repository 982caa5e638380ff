"""Cifar Collage and Distilled: an object of CIFAR-100 with three background images, and without (Sec. 5.1, Supp. 2.2).

The text says "4x4-stitched"; its figure and the authors' reference implementation stitch 2 x 2 tiles of 32 pixels.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch

from gspool.data.cifar import CIFAR100, read_names, read_part
from gspool.data.image_set import ImageSet, Split
from gspool.data.image_source import ArrayImages
from gspool.data.splits import checked_seed

if TYPE_CHECKING:
    from jaxtyping import Int64, UInt8
    from torch import Generator, Tensor

TILE = 32
# The super-classes that all labels share as backgrounds. The paper says that there are four, the authors' reference
# implementation which.
SHARED = ("flowers", "large_man-made_outdoor_things", "large_natural_outdoor_scenes", "trees")
# Of the five sub-classes of every super-class, in the order of their names: two train, one validates, two test.
SUB_CLASSES: dict[Split, slice] = {"train": slice(0, 2), "validation": slice(2, 3), "test": slice(3, 5)}


def collage(root: Path, split: Split, *, seed: int = 0, download: bool = False) -> ImageSet:
    """Stitch a collage for every image of the 16 labelled super-classes: 19,200 to train and test, 9,600 to validate.

    Another ``seed`` stitches the same objects with other backgrounds in other places.

    Raises:
        FileNotFoundError: if CIFAR-100 is not under ``root``.
        ValueError: if it is damaged or incomplete, or the seed is out of range.
    """
    checked_seed(seed)
    pool = _pools(root, split, download)
    generator = torch.Generator().manual_seed(seed)
    count = len(pool.objects)
    places = torch.randint(4, (count,), generator=generator)
    chosen = pool.backgrounds[_triples(count, len(pool.backgrounds), generator)]
    images = CollageImages(pool.tiles, pool.objects, chosen, places)
    return ImageSet(images, pool.labels, pool.class_names, name="collage", split=split, foreground=places)


def distilled(root: Path, split: Split, *, download: bool = False) -> ImageSet:
    """Return the objects of `collage` without backgrounds, 32 x 32 pixels, in the same order: an upper bound.

    Raises:
        FileNotFoundError: if CIFAR-100 is not under ``root``.
        ValueError: if it is damaged or incomplete.
    """
    pool = _pools(root, split, download)
    images = ArrayImages(pool.tiles[pool.objects], "distilled")
    return ImageSet(images, pool.labels, pool.class_names, name="distilled", split=split)


def stitch(tiles: UInt8[Tensor, "T 3 P P"]) -> UInt8[Tensor, "3 H W"]:
    """Join 4, 9, ... tiles to one image, row by row."""
    side = math.isqrt(len(tiles))
    return tiles.unflatten(0, (side, side)).permute(2, 0, 3, 1, 4).flatten(3).flatten(1, 2)


class CollageImages:
    """Collages stitched on access: one quarter holds the object, the other three a background each."""

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
        return stitch(self.tiles[self.quarters[index]])

    def describe(self, index: int) -> str:
        """Return the rows of CIFAR-100 in the collage."""
        return f"collage {index} of CIFAR-100 images {self.quarters[index].tolist()}"


class Pools(NamedTuple):
    """All tiles, and where those of one split are: the objects with their labels, and the shared backgrounds."""

    tiles: UInt8[Tensor, "T 3 32 32"]
    objects: Int64[Tensor, " N"]
    labels: Int64[Tensor, " N"]
    backgrounds: Int64[Tensor, " P"]
    class_names: tuple[str, ...]


def _pools(root: Path, split: Split, download: bool) -> Pools:
    """Collect the tiles of one split from all 60,000 images of CIFAR-100, its train and test parts together.

    Foregrounds and backgrounds of the three splits come from disjoint sub-classes.
    """
    folder = CIFAR100.locate(root, download)
    fine_names = read_names(folder / "meta", "fine_label_names")
    coarse_names = read_names(folder / "meta", "coarse_label_names")
    tiles, labels_of = read_part([folder / "train", folder / "test"], "fine_labels", "coarse_labels")
    fine, coarse = labels_of["fine_labels"], labels_of["coarse_labels"]
    missing = sorted(set(SHARED) - set(coarse_names))
    if missing:
        raise ValueError(f"{folder} has no super-class {', '.join(missing)}; is this CIFAR-100?")
    objects, labels, backgrounds = [], [], []
    class_names: list[str] = []
    for number, name in enumerate(coarse_names):
        subs = sorted(fine[coarse == number].unique().tolist(), key=lambda label: fine_names[label])
        if len(subs) != 5:
            raise ValueError(f"super-class {name} of {folder} has {len(subs)} sub-classes, expected 5: {subs}")
        rows = torch.isin(fine, torch.tensor(subs[SUB_CLASSES[split]])).nonzero().flatten()
        if name in SHARED:
            backgrounds.append(rows)
        else:
            objects.append(rows)
            labels.append(torch.full_like(rows, len(class_names)))
            class_names.append(name)
    return Pools(tiles, torch.cat(objects), torch.cat(labels), torch.cat(backgrounds), tuple(class_names))


def _triples(count: int, pool: int, generator: Generator) -> Int64[Tensor, "N 3"]:
    """Draw three backgrounds at a time from a shuffled pool, reshuffled when it is empty: all are used equally."""
    if pool < 3:
        raise ValueError(f"a collage needs three different backgrounds, the shared classes have {pool} images")
    deals = [
        torch.randperm(pool, generator=generator)[: pool // 3 * 3].view(-1, 3) for _ in range(-(-count // (pool // 3)))
    ]
    return torch.cat(deals)[:count]
