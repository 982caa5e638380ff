"""CIFAR-10: ten classes, of the zero-shot prediction study (Sec. 5.1, Supp. 2.3)."""

from __future__ import annotations

from pathlib import Path

from gspool.data.benchmark import Benchmark, Count
from gspool.data.cifar_archive import cifar_set
from gspool.data.download import Archive
from gspool.data.image_set import ImageSet, Split

CIFAR10 = Benchmark(
    name="cifar10",
    folder="cifar-10-batches-py",
    marks=("batches.meta",),
    layout="  cifar-10-batches-py/data_batch_1 ... data_batch_5, test_batch, batches.meta",
    page="https://www.cs.toronto.edu/~kriz/cifar.html",
    archive=Archive(
        url="https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
        md5="c58f30108f718f92721af3b95e74349a",
        file_name="cifar-10-python.tar.gz",
        folder="cifar-10-batches-py",
    ),
)


def cifar10(
    root: Path,
    split: Split,
    *,
    fold: int | None = None,
    folds: int = 10,
    allow_partial: bool = False,
    download: bool = False,
) -> ImageSet:
    """Read CIFAR-10 from its python archive; train and test have the same classes.

    Raises:
        FileNotFoundError: if the data set is not under ``root``.
        ValueError: if a file is damaged or incomplete.
    """
    return cifar_set(
        CIFAR10,
        root,
        split,
        files={"train": tuple(f"data_batch_{number}" for number in range(1, 6)), "test": ("test_batch",)},
        label_key="labels",
        names_file="batches.meta",
        names_key="label_names",
        expected={"train": Count(50_000, 10), "test": Count(10_000, 10)},
        fold=fold,
        folds=folds,
        allow_partial=allow_partial,
        download=download,
    )
