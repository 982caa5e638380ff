"""Collages of CUB-200-2011: one labelled bird among distractors, made like the paper's Cifar Collage (Sec. 5.1).

The paper sets some super-classes apart as backgrounds that all labels share. Here water birds are set apart: they are
never labelled, and every picture of a land bird is stitched together with some of them. Land birds keep the split of
CUB (classes 1-100 and 101-200). Distractors of train and test are different pictures of the same classes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from gspool.data.collage import stitch
from gspool.data.cub import cub
from gspool.data.decode import decode, printable
from gspool.data.image_set import ImageSet, Split
from gspool.data.image_source import FileImages
from gspool.data.splits import checked_seed
from gspool.data.transforms import evaluation_transform

if TYPE_CHECKING:
    from jaxtyping import UInt8
    from torch import Tensor

WATER_BIRDS = re.compile(
    "Albatross|Auklet|Cormorant|Frigatebird|Fulmar|Gadwall|Grebe|Guillemot|Gull|Jaeger|Kittiwake|Loon|Mallard|Merganser|"
    "Pelican|Puffin|Tern|Wigeon"
)


def cub_collage(
    root: Path,
    split: Split,
    *,
    side: int = 2,
    size: int = 448,
    draws: int = 1,
    seed: int = 0,
    allow_partial: bool = False,
    download: bool = False,
) -> ImageSet:
    """Stitch ``side`` x ``side`` pictures of CUB, one of them a land bird that gives the label.

    Args:
        root: folder with CUB_200_2011.
        split: train or test.
        side: pictures in a row; 2 has three distractors, 3 has eight.
        size: side of the collage in pixels.
        draws: collages of every land bird, each with other distractors in other places.
        seed: of the draws.
        allow_partial: go on if files of CUB are missing.
        download: download CUB if it is missing.

    Raises:
        FileNotFoundError: if CUB is not under ``root``.
        ValueError: for another split, or numbers out of range.
    """
    checked_seed(seed)
    if split not in ("train", "test"):
        raise ValueError(f"cub_collage has the splits train and test, got {split!r}; folds of train validate")
    if side < 2 or size < side or draws < 1:
        raise ValueError(f"side must be at least 2, size at least side, draws at least 1, got {side}, {size}, {draws}")
    labelled, distractors = [], []
    for part in ("train", "test"):
        birds = cub(root, part, allow_partial=allow_partial, download=download)
        assert isinstance(birds.images, FileImages)
        for path, label in zip(birds.images.paths, birds.labels.tolist(), strict=True):
            if WATER_BIRDS.search(birds.class_names[label]):
                distractors.append(path)
            elif part == split:
                labelled.append((path, birds.class_names[label]))
    # Every other picture of a distractor class belongs to train, the others to test.
    pool = distractors[0 if split == "train" else 1 :: 2]
    if len(pool) < side * side - 1 or not labelled:
        raise ValueError(f"a collage needs {side * side - 1} distractors and a labelled bird; CUB is incomplete")
    names = sorted({name for _, name in labelled})
    generator = torch.Generator().manual_seed(seed)
    stitched, labels = [], []
    for path, name in labelled:
        for _ in range(draws):
            tiles = [pool[i] for i in torch.randperm(len(pool), generator=generator)[: side * side - 1].tolist()]
            tiles.insert(int(torch.randint(side * side, (1,), generator=generator)), path)
            stitched.append(tiles)
            labels.append(names.index(name))
    images = StitchedImages(stitched, side, size)
    return ImageSet(images, labels, names, name="cub_collage", split=split)


class StitchedImages:
    """Collages decoded and stitched on access; ``files`` lists the pictures that one consists of."""

    def __init__(self, stitched: Sequence[Sequence[Path]], side: int, size: int) -> None:
        self.files, self.side, self.tile = stitched, side, size // side
        self.cut = evaluation_transform(self.tile, resize=self.tile)

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> UInt8[Tensor, "3 H W"]:
        return stitch(torch.stack([self.cut(decode(path)) for path in self.files[index]]))

    def describe(self, index: int) -> str:
        """Return the files in the collage, row by row."""
        return f"{self.side} x {self.side} tiles of {self.tile} px: {', '.join(map(printable, self.files[index]))}"
