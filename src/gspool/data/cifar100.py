"""CIFAR-100: a hundred classes in twenty super-classes; the backbone of the collage study learns on it."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from gspool.data.benchmark import Benchmark, Count
from gspool.data.cifar_archive import cifar_set
from gspool.data.download import Archive
from gspool.data.image_set import ImageSet, Split

CIFAR100 = Benchmark(
    name="cifar100",
    folder="cifar-100-python",
    marks=("meta",),
    layout="  cifar-100-python/train, test, meta",
    page="https://www.cs.toronto.edu/~kriz/cifar.html",
    archive=Archive(
        url="https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
        md5="eb9058c3a382ffc7106e4002c42a8d85",
        file_name="cifar-100-python.tar.gz",
        folder="cifar-100-python",
    ),
)


def cifar100(
    root: Path,
    split: Split,
    *,
    classes: Literal["fine", "coarse"] = "fine",
    fold: int | None = None,
    folds: int = 10,
    allow_partial: bool = False,
    download: bool = False,
) -> ImageSet:
    """Read CIFAR-100 from its python archive, labelled by its 100 fine or its 20 coarse classes.

    Raises:
        FileNotFoundError: if the data set is not under ``root``.
        ValueError: if a file is damaged or incomplete, or ``classes`` is neither fine nor coarse.
    """
    if classes not in ("fine", "coarse"):
        raise ValueError(f"the classes of CIFAR-100 are 'fine' (100) or 'coarse' (20), got {classes!r}")
    number = 100 if classes == "fine" else 20
    return cifar_set(
        CIFAR100,
        root,
        split,
        files={"train": ("train",), "test": ("test",)},
        label_key=f"{classes}_labels",
        names_file="meta",
        names_key=f"{classes}_label_names",
        expected={"train": Count(50_000, number), "test": Count(10_000, number)},
        fold=fold,
        folds=folds,
        allow_partial=allow_partial,
        download=download,
    )
