"""Where data sets are stored on this machine."""

from __future__ import annotations

import os
from pathlib import Path

ROOT_VARIABLE = "GSPOOL_DATA"


def data_root(root: str | os.PathLike[str] | None = None) -> Path:
    """Return the folder of the data sets: ``root`` if given, else $GSPOOL_DATA, else ``~/.cache/gspool/data``.

    Example:
        >>> data_root("pictures").name
        'pictures'
    """
    if root is not None:
        return Path(root).expanduser()
    return Path(os.environ.get(ROOT_VARIABLE) or "~/.cache/gspool/data").expanduser()
