"""Data sets by name."""

from __future__ import annotations

import builtins
import difflib
import importlib
import inspect
import os
from collections.abc import Callable
from typing import Any

from gspool.data.image_set import SPLITS, ImageSet, Split
from gspool.data.location import data_root

# One line a data set: its name and the module of that name in this package that holds a function of that name.
# A new one is a file and a word here; its function takes (root, split, options), or (split, options) without files.
_NAMES = (
    "glyphs",
    "folder",
    "cub",
    "cars196",
    "sop",
    "inshop",
    "cifar10",
    "cifar100",
    "collage",
    "distilled",
    "tokens",
)


def list() -> builtins.list[str]:
    """Name every data set that `create` knows.

    Example:
        >>> from gspool import data
        >>> data.list()[:3]
        ['glyphs', 'folder', 'cub']
    """
    return [*_NAMES]


def create(name: str, root: str | os.PathLike[str] | None = None, split: Split = "train", **options: Any) -> ImageSet:
    """Make one split of a data set.

    Args:
        name: one of `list()`.
        root: where the files are: the folder of the data set, or the folder above it. Without one, $GSPOOL_DATA or
            ``~/.cache/gspool/data``. Data that is generated needs none; ``folder`` needs one.
        split: ``train``, ``validation`` or ``test``.
        options: those of the function of that name, such as ``seed`` or ``fold``.

    Raises:
        ValueError: for a name, split or option that is not known; the message gives those that are.
        FileNotFoundError: if the data is not there; the message says what to put where.

    Example:
        >>> from gspool import data
        >>> data.create("glyphs", split="validation", images_per_class=1)
        glyphs/validation: 154 images of 154 classes
    """
    if name not in _NAMES:
        raise ValueError(f"there is no data set {name!r}{_nearest(name, _NAMES)}; known are {', '.join(_NAMES)}")
    if split not in SPLITS:
        raise ValueError(f"there is no split {split!r}; a split is one of {', '.join(SPLITS)}")
    make = _maker(name)
    parameters = inspect.signature(make).parameters
    known = option_names(name)
    for option in options:
        if option not in known:
            raise ValueError(
                f"{name} has no option {option!r}{_nearest(option, known)}; its options are {', '.join(known)}"
            )
    if "root" not in parameters:
        return make(split, **options)
    if name == "folder" and root is None:
        raise ValueError(
            "folder needs a root: the folder that holds your class sub-folders, or a CSV file (to a run: --data.root)"
        )
    return make(data_root(root), split, **options)


def option_names(name: str) -> builtins.list[str]:
    """Name the options of a data set.

    Example:
        >>> option_names("collage")
        ['seed', 'download']
    """
    return [option for option in inspect.signature(_maker(name)).parameters if option not in ("root", "split")]


def _maker(name: str) -> Callable[..., ImageSet]:
    make: Callable[..., ImageSet] = getattr(importlib.import_module(f"gspool.data.{name}"), name)
    return make


def _nearest(word: str, known: builtins.list[str] | tuple[str, ...]) -> str:
    match = difflib.get_close_matches(word, known, n=1)
    return f", did you mean {match[0]!r}?" if match else ""
