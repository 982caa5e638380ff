"""Read the python archives of CIFAR: pickles of arrays and lists, without running anything that is in them."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

if TYPE_CHECKING:
    from jaxtyping import Int64, UInt8
    from torch import Tensor

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


class CifarPart(NamedTuple):
    """The images of some files, and their labels under every requested key."""

    pixels: UInt8[Tensor, "N 3 32 32"]
    labels: dict[str, Int64[Tensor, " N"]]


class _ArraysOnly(pickle.Unpickler):
    """An unpickler for arrays, numbers, text, lists and dictionaries only."""

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
                raise ValueError(f"{path}: expected {key!r} to be a list of {len(rows)} labels, one for each row")
            all_labels += own
        pixels.append(torch.from_numpy(rows.reshape(-1, 3, 32, 32)))
    return CifarPart(torch.cat(pixels), {key: torch.tensor(own, dtype=torch.int64) for key, own in labels.items()})
