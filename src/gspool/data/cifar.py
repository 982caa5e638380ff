"""CIFAR-10 and CIFAR-100, of the zero-shot prediction and collage studies (Sec. 5.1, Supp. 2.2 and 2.3).

Their python archives are pickles of arrays and lists. They are read without running anything that is in them.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import torch

from gspool.data.benchmark import Count, Published, official_part, part_of_fold
from gspool.data.download import Archive
from gspool.data.image_set import ImageSet, Split
from gspool.data.image_source import ArrayImages
from gspool.data.splits import image_fold

if TYPE_CHECKING:
    from jaxtyping import Int64, UInt8
    from torch import Tensor

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

# What an array is rebuilt from, by its names in old and new numpy; a pickle that names anything else is refused.
_ALLOWED = frozenset(
    {
        ("numpy", "ndarray"),
        ("numpy", "dtype"),
        ("numpy.core.multiarray", "_reconstruct"),
        ("numpy._core.multiarray", "_reconstruct"),
        ("_codecs", "encode"),
    }
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
    part = official_part("cifar10", split, fold, "images")
    files = [f"data_batch_{number}" for number in range(1, 6)] if part == "train" else ["test_batch"]
    expected = Count(IMAGES[part], 10)
    images = _read_split(CIFAR10, CIFAR10.locate(root, download), split, files, "label", expected, allow_partial)
    return part_of_fold(images, fold, folds, image_fold)


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
    expected, key = Count(IMAGES[part], 100 if classes == "fine" else 20), f"{classes}_label"
    images = _read_split(CIFAR100, CIFAR100.locate(root, download), split, [part], key, expected, allow_partial)
    return part_of_fold(images, fold, folds, image_fold)


def _read_split(
    published: Published, folder: Path, split: Split, files: list[str], key: str, expected: Count, allow_partial: bool
) -> ImageSet:
    pixels, labels = read_part([folder / file for file in files], f"{key}s")
    found = Count(len(pixels), len(labels[f"{key}s"].unique()))
    published.check_count(split, found, expected, folder, allow_partial)
    names = read_names(folder / published.marks[0], f"{key}_names")
    return ImageSet(ArrayImages(pixels, published.name), labels[f"{key}s"], names, name=published.name, split=split)


class CifarPart(NamedTuple):
    """The images of some files, and their labels under every requested key."""

    pixels: UInt8[Tensor, "N 3 32 32"]
    labels: Mapping[str, Int64[Tensor, " N"]]


def read_part(files: list[Path], *label_keys: str) -> CifarPart:
    """Read the images and their labels from some files, in their order."""
    pixels = []
    labels: dict[str, list[int]] = {key: [] for key in label_keys}
    for path in files:
        record = read_record(path)
        rows = record.get("data")
        if not isinstance(rows, np.ndarray) or rows.dtype != np.uint8 or rows.ndim != 2 or rows.shape[1] != 3072:
            raise ValueError(f"{path}: expected 'data' to be uint8 of shape [N, 3072], found keys {sorted(record)}")
        for key, all_labels in labels.items():
            own = record.get(key)
            if not isinstance(own, list) or len(own) != len(rows):
                raise ValueError(f"{path}: expected {key!r} to be a list of {len(rows)} labels, one for each row")
            all_labels += own
        pixels.append(torch.from_numpy(rows.reshape(-1, 3, 32, 32)))
    return CifarPart(torch.cat(pixels), {key: torch.tensor(own, dtype=torch.int64) for key, own in labels.items()})


def read_names(path: Path, key: str) -> list[str]:
    """Read the names of the classes."""
    names = read_record(path).get(key)
    if not isinstance(names, list):
        raise ValueError(f"{path} has no list of names {key!r}; unpack the published archive again")
    return names


def read_record(path: Path) -> dict[str, Any]:
    """Read one file, a dictionary of arrays and lists; refuse anything but arrays, numbers and text."""
    try:
        with path.open("rb") as file:
            # Written by Python 2, where text is bytes.
            record = _ArraysOnly(file, encoding="bytes").load()
    except FileNotFoundError:
        raise
    except Exception as problem:  # damaged pickles raise nearly anything
        raise ValueError(f"{path} is not a file of CIFAR: {problem}; unpack the published archive again") from problem
    if not isinstance(record, dict):
        raise ValueError(f"{path} is not a file of CIFAR: it holds a {type(record).__name__}, expected a dictionary")
    return {
        _text(key): [_text(one) for one in value] if isinstance(value, list) else value for key, value in record.items()
    }


class _ArraysOnly(pickle.Unpickler):
    """An unpickler for arrays, numbers, text, lists and dictionaries only."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no CIFAR file needs")
        return super().find_class(module, name)


def _text(value: Any) -> Any:
    return value.decode("utf-8") if isinstance(value, bytes) else value
