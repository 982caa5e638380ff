"""CIFAR-10 and CIFAR-100, of the zero-shot prediction and collage studies (Sec. 5.1, Supp. 2.2 and 2.3)."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from gspool.data.benchmark import Count, Published, official_part
from gspool.data.cifar_archive import read_names, read_part
from gspool.data.download import Archive
from gspool.data.image_set import ImageSet, Split
from gspool.data.image_source import ArrayImages
from gspool.data.splits import image_fold

CIFAR10 = Published(
    name="cifar10",
    folder="cifar-10-batches-py",
    marks=("batches.meta",),
    layout="  cifar-10-batches-py/data_batch_1 ... data_batch_5, test_batch, batches.meta",
    page="https://www.cs.toronto.edu/~kriz/cifar.html",
    archive=Archive(
        url="https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
        md5="c58f30108f718f92721af3b95e74349a",
        sha256="6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
    ),
)
CIFAR100 = Published(
    name="cifar100",
    folder="cifar-100-python",
    marks=("meta",),
    layout="  cifar-100-python/train, test, meta",
    page="https://www.cs.toronto.edu/~kriz/cifar.html",
    archive=Archive(
        url="https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
        md5="eb9058c3a382ffc7106e4002c42a8d85",
        sha256="85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7",
    ),
)
IMAGES = {"train": 50_000, "test": 10_000}


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
    part = official_part("cifar10", split, fold, "images")
    folder = CIFAR10.locate(root, download)
    files = ["test_batch"] if part == "test" else [f"data_batch_{number}" for number in range(1, 6)]
    pixels, labels = read_part([folder / file for file in files], "labels")
    names = read_names(folder / "batches.meta", "label_names")
    images = ImageSet(ArrayImages(pixels, "cifar10"), labels["labels"], names, name="cifar10", split=split)
    return _fold_of(_checked(images, folder, Count(IMAGES[part], 10), allow_partial), split, fold, folds)


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
    part = official_part("cifar100", split, fold, "images")
    folder = CIFAR100.locate(root, download)
    key = f"{classes}_labels"
    pixels, labels = read_part([folder / part], key)
    names = read_names(folder / "meta", f"{classes}_label_names")
    images = ImageSet(ArrayImages(pixels, "cifar100"), labels[key], names, name="cifar100", split=split)
    number = 100 if classes == "fine" else 20
    return _fold_of(_checked(images, folder, Count(IMAGES[part], number), allow_partial), split, fold, folds)


def _checked(images: ImageSet, folder: Path, expected: Count, allow_partial: bool) -> ImageSet:
    found = Count(len(images), len(images.labels.unique()))
    if found != expected and not allow_partial:
        raise ValueError(
            f"{images.name}/{images.split} must have {expected}, {folder} has {found}; "
            "unpack the archive again, or pass allow_partial=True to use what is there"
        )
    return images


def _fold_of(images: ImageSet, split: Split, fold: int | None, folds: int) -> ImageSet:
    """Return the part of a fold of images; classes are the same on both sides."""
    if split == "test" or fold is None:
        return images
    both = image_fold(images, fold, folds)
    return both.train if split == "train" else both.validation
