"""The super-classes of CIFAR-100 as the collage study cuts them (Sec. 5.1, Supp. 2.2)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch

from gspool.data.benchmark import locate
from gspool.data.cifar100 import CIFAR100
from gspool.data.cifar_archive import read_names, read_part

if TYPE_CHECKING:
    from jaxtyping import Int64, UInt8
    from torch import Tensor

    from gspool.data.image_set import Split

# The paper says that four super-classes are shared, the authors' reference implementation which.
SHARED = ("flowers", "large_man-made_outdoor_things", "large_natural_outdoor_scenes", "trees")
# Of the five sub-classes of every super-class, in the order of their names: two train, one validates, two test.
SUB_CLASSES: dict[Split, slice] = {"train": slice(0, 2), "validation": slice(2, 3), "test": slice(3, 5)}


class Pools(NamedTuple):
    """All tiles, and where to find those of one split: the object of every label, and the shared backgrounds."""

    tiles: UInt8[Tensor, "T 3 32 32"]
    objects: Int64[Tensor, " N"]
    labels: Int64[Tensor, " N"]
    backgrounds: Int64[Tensor, " P"]
    class_names: tuple[str, ...]


def pools(root: Path, split: Split, *, download: bool) -> Pools:
    """Gather the tiles of one split from all 60,000 images of CIFAR-100, its own train and test parts together.

    Foregrounds and backgrounds of the three splits come from disjoint sub-classes.

    Raises:
        FileNotFoundError: if CIFAR-100 is not under ``root``.
        ValueError: if a super-class does not have five sub-classes, or a shared one is missing.
    """
    folder = locate(CIFAR100, root, download)
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
