"""What Ctrl-C and SIGTERM do to a run of many trainings: one line about what is kept, and the status of the signal."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class TerminatedError(BaseException):
    """SIGTERM came: what `KeyboardInterrupt` is to Ctrl-C."""


@contextmanager
def told_when_stopped(kept: Callable[[], int], of: int) -> Iterator[None]:
    """Say in one line how many trainings are kept where Ctrl-C or SIGTERM ends what is done in here.

    Raises:
        SystemExit: then, with the status that shells expect, 130 or 143.

    Example:
        >>> with told_when_stopped(lambda: 1, of=3):
        ...     done = True
    """
    try:
        with _handlers({signal.SIGTERM: _terminate}):
            yield
    except (KeyboardInterrupt, TerminatedError) as stop:
        number = signal.SIGINT if isinstance(stop, KeyboardInterrupt) else signal.SIGTERM
        told = f"stopped; {kept()} of {of} trainings to be made are kept, the same command goes on with the others"
        print(f"\n{told}", file=sys.stderr, flush=True)
        raise SystemExit(128 + number) from None


@contextmanager
def told_when_terminated() -> Iterator[None]:
    """Let SIGTERM end a whole command as Ctrl-C does, also between two parts of it, when a crew waits for the next.

    Processes are then let go on the way out; the signal alone would leave them behind for a while.

    Raises:
        SystemExit: after SIGTERM, with the status that shells expect, 143.

    Example:
        >>> with told_when_terminated():
        ...     done = True
    """
    try:
        with _handlers({signal.SIGTERM: _terminate}):
            yield
    except TerminatedError:
        print("\nstopped; what is finished is kept, the same command goes on from there", file=sys.stderr, flush=True)
        raise SystemExit(128 + signal.SIGTERM) from None


class Noticed:
    """Whether a signal has come; ``pipe`` becomes readable when it does, for those that wait."""

    def __init__(self, pipe: int) -> None:
        self.pipe = pipe
        self.number: int | None = None

    def raise_it(self) -> NoReturn:
        """Raise what the signal would have raised."""
        raise KeyboardInterrupt if self.number == signal.SIGINT else TerminatedError


@contextmanager
def noticed_signals() -> Iterator[Noticed]:
    """Note the first signal instead of being interrupted anywhere, such as while a result is written.

    A second one interrupts at once.
    """
    readable, writable = os.pipe()
    noticed = Noticed(readable)

    def note(number: int, frame: FrameType | None) -> None:
        noticed.number = number
        os.write(writable, b".")
        for each in SIGNALS:
            if signal.getsignal(each) is note:
                signal.signal(each, _terminate if each == signal.SIGTERM else signal.default_int_handler)

    try:
        with _handlers(dict.fromkeys(SIGNALS, note)):
            yield noticed
    finally:
        os.close(readable)
        os.close(writable)


@contextmanager
def held_signals() -> Iterator[None]:
    """Hold signals back while processes are begun, which begin with the same hold: `member.serve` lifts it.

    Otherwise Ctrl-C would end them with a traceback while they still import.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    from multiprocessing import resource_tracker

    # It is begun together with the first process, and would lift the hold.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _terminate(number: int, frame: FrameType | None) -> NoReturn:
    raise TerminatedError


@contextmanager
def _handlers(
    wanted: dict[signal.Signals, Callable[[int, FrameType | None], object]],
) -> Iterator[None]:
    # Python delivers signals to the main thread alone; elsewhere whoever began the thread stops it. What is ignored
    # stays so: that is how a shell shields a command in the background from Ctrl-C.
    main = threading.current_thread() is threading.main_thread()
    former = {each: signal.getsignal(each) for each in wanted} if main else {}
    former = {each: handler for each, handler in former.items() if handler is not signal.SIG_IGN}
    for each in former:
        signal.signal(each, wanted[each])
    try:
        yield
    finally:
        for each, handler in former.items():
            signal.signal(each, handler)
