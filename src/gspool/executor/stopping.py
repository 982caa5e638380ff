"""Ctrl-C and SIGTERM during an experiment: one line about what is kept, and the status 130 or 143."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from gspool.executor.signals import TerminatedError


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
        with _raise_on_sigterm():
            yield
    except BaseException as stop:
        number = _signal_of(stop)
        if number is None:
            raise
        print(f"\n{line()}", file=sys.stderr, flush=True)
        raise SystemExit(128 + number) from None


def _signal_of(stop: BaseException) -> int | None:
    if isinstance(stop, KeyboardInterrupt):
        return signal.SIGINT
    if isinstance(stop, TerminatedError):
        return signal.SIGTERM
    # `gspool.training.signals.TrainingInterruptedError`, whose package takes seconds to import.
    number: int | None = getattr(stop, "signum", None)
    return number


@contextmanager
def _raise_on_sigterm() -> Iterator[None]:
    def terminate(number: int, frame: FrameType | None) -> None:
        raise TerminatedError

    main = threading.current_thread() is threading.main_thread()
    # What is ignored stays ignored, and only the main thread may set a handler.
    before = signal.getsignal(signal.SIGTERM) if main else signal.SIG_IGN
    if before is signal.SIG_IGN:
        yield
        return
    signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
