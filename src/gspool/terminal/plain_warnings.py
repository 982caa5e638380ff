"""Warnings as a person at a terminal reads them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def warned_in_plain_words() -> Iterator[None]:
    """Show warnings to users without the line of source that they come from; those to programmers stay as they are.

    Example:
        >>> with warned_in_plain_words():
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
