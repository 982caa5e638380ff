"""Ctrl-C and SIGTERM as notes instead of exceptions, which could leave a lock held or a process behind."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

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

    The third one takes its usual effect at once, for whoever is stuck. Outside the main thread nothing is changed:
    Python delivers no signals there. Signals that are ignored stay so, as for a command in the background of a shell.

    Args:
        call: called in the signal handler, so it must be safe there (`queue.SimpleQueue.put` is).

    Raises:
        KeyboardInterrupt: if a signal was noted and its usual handler does not raise or end the process.
    """
    noted = Noted()
    main = threading.current_thread() is threading.main_thread()
    former = {each: signal.getsignal(each) for each in SIGNALS} if main else {}
    former = {each: handler for each, handler in former.items() if handler not in (signal.SIG_IGN, None)}

    def restore() -> None:
        for each, handler in former.items():
            signal.signal(each, handler)

    def note(number: int, frame: FrameType | None) -> None:
        noted.number = noted.number or number
        noted.count += 1
        if noted.count > 2:
            restore()
            signal.raise_signal(number)
        call()

    for each in former:
        signal.signal(each, note)
    try:
        yield noted
    finally:
        restore()
    if noted.number is not None:
        signal.raise_signal(noted.number)
        raise KeyboardInterrupt


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
