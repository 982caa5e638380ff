"""Warnings in one line."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def short_warnings() -> Iterator[None]:
    """Show a UserWarning without its line of source; other warnings, which are for programmers, do not change.

    Example:
        >>> with short_warnings():
        ...     warnings.formatwarning("3 images are left out", UserWarning, "sets.py", 49)
        'warning: 3 images are left out\\n'
    """
    usual = warnings.formatwarning

    def shown(message: Any, category: type[Warning], *place: Any, **more: Any) -> str:
        return f"warning: {message}\n" if category is UserWarning else usual(message, category, *place, **more)

    warnings.formatwarning = shown
    try:
        yield
    finally:
        warnings.formatwarning = usual
