"""Import the public names of a package on first use (PEP 562)."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from typing import Any


def import_on_demand(package: str, homes: Mapping[str, str], name: str, extra: str) -> Any:
    """Import a public name of a package; ``__all__`` is the list of those that can be imported.

    Args:
        package: the package.
        homes: the module of each name, below the package; a name that is its own module is a sub-package.
        name: the name to import.
        extra: the extra of the installation that the package needs.

    Raises:
        AttributeError: if the package has no such name.
        ModuleNotFoundError: if a library is missing, with what to install.
    """
    if name == "__all__":
        return importable(package, homes)
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


def importable(package: str, homes: Mapping[str, str]) -> list[str]:
    """Return the names whose libraries are installed, by importing them.

    dir(), help(), Tab and `import *` read every name of a package, and would stop at the first that fails. A missing
    name that is asked for directly still raises the error that names the library.

    Example:
        >>> importable("gspool", {"GSP": "pooling.gsp", "page": "no_such_module"})
        ['GSP']
    """
    found = set()
    for home in {*homes.values()}:
        with suppress(ImportError):
            import_module(f"{package}.{home}")
            found.add(home)
    return sorted(name for name, home in homes.items() if home in found)
