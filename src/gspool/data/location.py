"""Where data sets live on this machine."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

ROOT_VARIABLE = "GSPOOL_DATA"


def data_root(root: str | os.PathLike[str] | None = None) -> Path:
    """Give the folder that holds data sets: the one asked for, else $GSPOOL_DATA, else ``~/.cache/gspool/data``.

    Example:
        >>> data_root("pictures").name
        'pictures'
    """
    if root is not None:
        return Path(root).expanduser()
    return Path(os.environ.get(ROOT_VARIABLE) or "~/.cache/gspool/data").expanduser()


def find_folder(root: Path, folder: str, marks: Iterable[str]) -> Path | None:
    """Find the folder of a data set: ``root`` itself or ``root/folder``, whichever holds one of the ``marks``."""
    for place in (root, root / folder):
        if any((place / mark).exists() for mark in marks):
            return place
    return None
