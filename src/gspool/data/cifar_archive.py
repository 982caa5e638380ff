"""The published python form of CIFAR: pickles of plain arrays and lists, read so that nothing in them can run."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from gspool.data.benchmark import Benchmark, Count, locate
from gspool.data.image_set import ImageSet, Split
from gspool.data.image_source import ArrayImages
from gspool.data.splits import image_fold

if TYPE_CHECKING:
    from jaxtyping import Int64, UInt8
    from torch import Tensor

# What an array is rebuilt from, under its names in old and new numpy; a pickle that names anything else is refused.
_ALLOWED = frozenset(
    {
        ("numpy", "ndarray"),
        ("numpy", "dtype"),
        ("numpy.core.multiarray", "_reconstruct"),
        ("numpy._core.multiarray", "_reconstruct"),
        ("_codecs", "encode"),
    }
)


class CifarPart(NamedTuple):
    """The images of some files, and their labels under every key that was asked for."""

    pixels: UInt8[Tensor, "N 3 32 32"]
    labels: dict[str, Int64[Tensor, " N"]]


class _ArraysOnly(pickle.Unpickler):
    """An unpickler that knows arrays, numbers, text, lists and dictionaries, and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no CIFAR file needs")
        return super().find_class(module, name)


def read_record(path: Path) -> dict[str, Any]:
    """Read one file of CIFAR: a dictionary of arrays and lists.

    Raises:
        FileNotFoundError: if the file is missing.
        ValueError: if it is damaged, or holds anything but arrays, numbers and text.
    """
    try:
        with path.open("rb") as file:
            # The files were written by Python 2, whose text and bytes are one: all of it comes as bytes.
            record = _ArraysOnly(file, encoding="bytes").load()
    except FileNotFoundError:
        raise
    except Exception as problem:  # damaged pickles raise nearly anything; all of it means the same here
        raise ValueError(f"{path} is not a file of CIFAR: {problem}; unpack the published archive again") from problem
    if not isinstance(record, dict):
        raise ValueError(f"{path} is not a file of CIFAR: it holds a {type(record).__name__}, expected a dictionary")
    return {
        _text(key): [_text(one) for one in value] if isinstance(value, list) else value for key, value in record.items()
    }


def _text(value: Any) -> Any:
    return value.decode("utf-8") if isinstance(value, bytes) else value


def read_names(path: Path, key: str) -> list[str]:
    """Read the names of the classes from the file that has them.

    Raises:
        FileNotFoundError: if the file is missing.
        ValueError: if it has no such names.
    """
    names = read_record(path).get(key)
    if not isinstance(names, list):
        raise ValueError(f"{path} has no list of names {key!r}; unpack the published archive again")
    return names


def read_part(files: list[Path], *label_keys: str) -> CifarPart:
    """Read the images and their labels from some files, in their order.

    Raises:
        FileNotFoundError: if a file is missing.
        ValueError: if a file does not hold uint8 rows of 3,072 with a label each.
    """
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
                raise ValueError(f"{path}: expected {key!r} to be a list of {len(rows)} labels, one a row")
            all_labels += own
        pixels.append(torch.from_numpy(rows.reshape(-1, 3, 32, 32)))
    return CifarPart(torch.cat(pixels), {key: torch.tensor(own, dtype=torch.int64) for key, own in labels.items()})


def cifar_set(
    benchmark: Benchmark,
    root: Path,
    split: Split,
    *,
    files: dict[str, tuple[str, ...]],
    label_key: str,
    names_file: str,
    names_key: str,
    expected: dict[str, Count],
    fold: int | None,
    folds: int,
    allow_partial: bool,
    download: bool,
) -> ImageSet:
    """Make a set of CIFAR; validation is a fold of the training images, with the same classes.

    Raises:
        FileNotFoundError: if the data set, or one of its files, is missing.
        ValueError: if the counts are not the published ones and ``allow_partial`` is not set; or for validation
            without a fold.
    """
    if split == "validation" and fold is None:
        raise ValueError(
            f"{benchmark.name} has no validation part of its own: choose a fold of its training images with "
            "fold=0, 1, ... (of folds=10), and train with the same fold"
        )
    folder = locate(benchmark, root, download)
    official = "test" if split == "test" else "train"
    names = read_names(folder / names_file, names_key)
    part = read_part([folder / name for name in files[official]], label_key)
    labels = part.labels[label_key]
    found = Count(len(labels), len(labels.unique()))
    if found != expected[official] and not allow_partial:
        raise ValueError(
            f"{benchmark.name}/{official} must have {expected[official]}, {folder} has {found}; "
            "unpack the archive again, or pass allow_partial=True to go on with what is there"
        )
    images = ImageSet(ArrayImages(part.pixels, benchmark.name), labels, names, name=benchmark.name, split=split)
    if official == "test" or fold is None:
        return images
    both = image_fold(images, fold, folds)
    return both.train if split == "train" else both.validation
