"""Data sets by name."""

from __future__ import annotations

import builtins
import difflib
import importlib
import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gspool.data.image_set import SPLITS, ImageSet, Split

ROOT_VARIABLE = "GSPOOL_DATA"
# One line for each data set: its name, and the module of this package with a function of that name. The function takes
# (root, split, options), or (split, options) if it needs no files.
_MODULES = {
    "glyphs": "glyphs",
    "folder": "folder",
    "cub": "cub",
    "cars196": "cars196",
    "sop": "sop",
    "inshop": "inshop",
    "flowers": "flowers",
    "cifar10": "cifar",
    "cifar100": "cifar",
    "collage": "collage",
    "cub_collage": "cub_collage",
    "distilled": "collage",
    "tokens": "tokens",
    "imagenet": "imagenet",
}


def list() -> builtins.list[str]:
    """Return the names of all data sets.

    Example:
        >>> from gspool import data
        >>> data.list()[:3]
        ['glyphs', 'folder', 'cub']
    """
    return [*_MODULES]


def create(name: str, root: str | os.PathLike[str] | None = None, split: Split = "train", **options: Any) -> ImageSet:
    """Return one split of a data set.

    Args:
        name: one of `list()`.
        root: the folder of the data set, or the folder above it; $GSPOOL_DATA or ``~/.cache/gspool/data`` unless given.
            Generated data needs none; ``folder`` needs one.
        split: ``train``, ``validation`` or ``test``; of ``folder`` also ``all``, every image whatever its split.
        options: of the data set, such as ``seed`` or ``fold``.

    Raises:
        ValueError: for an unknown name, split or option; the message lists the known ones.
        FileNotFoundError: if the data is not there; the message says what to put where.

    Example:
        >>> from gspool import data
        >>> data.create("glyphs", split="validation", images_per_class=1)
        glyphs/validation: 154 images of 154 classes
    """
    if name not in _MODULES:
        raise ValueError(f"there is no data set {name!r}{_nearest(name, list())}; known are {', '.join(_MODULES)}")
    splits = (*SPLITS, "all") if name == "folder" else SPLITS
    if split not in splits:
        raise ValueError(f"{name} has no split {split!r}; choose one of {', '.join(splits)}")
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
            "folder needs a root: a folder with one sub-folder for each class, or a CSV file (in a run: --data.root)"
        )
    return make(data_root(root), split, **options)


def data_root(root: str | os.PathLike[str] | None = None) -> Path:
    """Return the folder of the data sets: ``root`` if given, else $GSPOOL_DATA, else ``~/.cache/gspool/data``.

    Example:
        >>> data_root("pictures").name
        'pictures'
    """
    if root is not None:
        return Path(root).expanduser()
    return Path(os.environ.get(ROOT_VARIABLE) or "~/.cache/gspool/data").expanduser()


def option_names(name: str) -> builtins.list[str]:
    """Return the names of the options of a data set.

    Example:
        >>> option_names("collage")
        ['seed', 'download']
    """
    return [option for option in inspect.signature(_maker(name)).parameters if option not in ("root", "split")]


def _maker(name: str) -> Callable[..., ImageSet]:
    make: Callable[..., ImageSet] = getattr(importlib.import_module(f"gspool.data.{_MODULES[name]}"), name)
    return make


def _nearest(word: str, known: builtins.list[str]) -> str:
    match = difflib.get_close_matches(word, known, n=1)
    return f", did you mean {match[0]!r}?" if match else ""
