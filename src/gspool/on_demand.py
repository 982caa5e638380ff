"""Packages whose names are imported when they are first asked for: which of them can be had here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib.util import find_spec


def at_hand(names: Iterable[str], needs: Mapping[str, tuple[str, ...]]) -> list[str]:
    """Leave out the names whose libraries are not installed.

    dir(), help(), completion by Tab and `import *` fetch every name of a package, and would stop at the first that
    cannot be imported. Asked for by itself, such a name still says what to install.

    Example:
        >>> at_hand(["GSP", "Embedder", "page"], {"Embedder": ("torch",), "page": ("torch", "no_such_library")})
        ['GSP', 'Embedder']
    """
    return [name for name in names if all(find_spec(library) is not None for library in needs.get(name, ()))]
