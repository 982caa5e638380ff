"""Ctrl-C and SIGTERM during an experiment: one line about what is kept, and the status 130 or 143."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from gspool.executor import TerminatedError, raise_on_sigterm


@contextmanager
def exit_with_line(line: Callable[[], str]) -> Iterator[None]:
    """Turn Ctrl-C and SIGTERM into one line on stderr and an exit.

    Raises:
        SystemExit: then, with status 130 or 143.

    Example:
        >>> with exit_with_line(lambda: "stopped"):
        ...     done = True
    """
    try:
        with raise_on_sigterm():
            yield
    except (KeyboardInterrupt, TerminatedError) as stop:
        number = signal.SIGTERM if isinstance(stop, TerminatedError) else signal.SIGINT
        print(f"\n{line()}", file=sys.stderr, flush=True)
        raise SystemExit(128 + number) from None
