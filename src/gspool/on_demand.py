"""Packages whose names are imported when they are first asked for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any


def at_hand(names: Iterable[str], needs: Mapping[str, tuple[str, ...]]) -> list[str]:
    """Leave out the names whose libraries are not installed.

    dir(), help(), completion by Tab and `import *` fetch every name of a package, and would stop at the first that
    cannot be imported. Asked for by itself, such a name still says what to install.

    Example:
        >>> at_hand(["GSP", "Embedder", "page"], {"Embedder": ("torch",), "page": ("torch", "no_such_library")})
        ['GSP', 'Embedder']
    """
    # Each library once, however many names need it: this is done whenever the package is imported.
    missing = {library for library in set().union(*needs.values()) if find_spec(library) is None}
    return [name for name in names if missing.isdisjoint(needs.get(name, ()))]


def import_on_demand(package: str, homes: Mapping[str, str], name: str, extra: str) -> Any:
    """Import a public name of a package.

    Args:
        package: the package.
        homes: where each of its names lives, below the package; a name that lives in itself is a package of its own.
        name: what was asked for.
        extra: the extra of the installation that the package needs.

    Raises:
        AttributeError: if it is none of the names.
        ModuleNotFoundError: if a library is missing, with what to install.
    """
    if name not in homes:
        raise AttributeError(f"module {package!r} has no attribute {name!r}; it has {', '.join(homes)}")
    try:
        module = import_module(f"{package}.{homes[name]}")
    except ModuleNotFoundError as missing:
        # Not a library: a fault of ours.
        if (missing.name or "").partition(".")[0] in ("", "gspool"):
            raise
        raise ModuleNotFoundError(
            f"{package}.{name} needs {missing.name}, which is not installed: pip install 'gspool[{extra}]'",
            name=missing.name,
        ) from missing
    return module if homes[name] == name else getattr(module, name)
