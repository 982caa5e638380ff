"""Ctrl-C and SIGTERM: noted where an exception could leave a process behind, else one line and an exit status."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from gspool.terminal.signals import handle_signals

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class TerminatedError(BaseException):
    """SIGTERM as an exception; like KeyboardInterrupt no ``except Exception`` may hold it up."""


class Noted:
    """The first signal that came, and how many did."""

    def __init__(self) -> None:
        self.number: int | None = None
        self.count = 0


@contextmanager
def noted_signals(call: Callable[[], object]) -> Iterator[Noted]:
    """Note signals in here, and deliver the first one at the end, when everything is tidied up.

    The third one takes its usual effect at once, for whoever is stuck.

    Args:
        call: called in the signal handler, so it must be safe there (`queue.SimpleQueue.put` is).

    Raises:
        KeyboardInterrupt: if a signal was noted and its usual handler does not raise or end the process.
    """
    noted = Noted()

    def note(number: int, frame: FrameType | None) -> None:
        noted.number = noted.number or number
        noted.count += 1
        if noted.count > 2:
            restore()
            signal.raise_signal(number)
        call()

    with handle_signals(SIGNALS, note) as restore:
        yield noted
    if noted.number is not None:
        signal.raise_signal(noted.number)
        raise KeyboardInterrupt


@contextmanager
def exit_with_line(line: Callable[[], str]) -> Iterator[None]:
    """Turn Ctrl-C and SIGTERM into one line on stderr and an exit.

    Raises:
        SystemExit: then, with status 130 or 143.

    Example:
        >>> with exit_with_line(lambda: "stopped"):
        ...     done = True
    """

    def terminate(number: int, frame: FrameType | None) -> None:
        raise TerminatedError

    try:
        with handle_signals((signal.SIGTERM,), terminate):
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
    # `gspool.training.processes.TrainingInterruptedError`, whose package takes seconds to import.
    number: int | None = getattr(stop, "signum", None)
    return number


@contextmanager
def blocked_signals() -> Iterator[None]:
    """Block signals in this thread while a process starts, which starts with the same mask.

    Otherwise Ctrl-C, which reaches the whole process group, would end it with a traceback while it still imports.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    from multiprocessing import resource_tracker

    # It starts together with the first process, and would lift the mask.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
