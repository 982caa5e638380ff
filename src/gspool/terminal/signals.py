"""Ctrl-C and SIGTERM: noted where an exception could leave a process behind, else one line and an exit status."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)
INTERRUPTED, TERMINATED = 130, 143
_LINES = {signal.SIGINT: (INTERRUPTED, b"\ninterrupted\n"), signal.SIGTERM: (TERMINATED, b"\nterminated\n")}


class TerminatedError(SystemExit):
    """SIGTERM in the main thread, so that temporary files are removed and locks released.

    Like KeyboardInterrupt no ``except Exception`` may hold it up.
    """

    signum = signal.SIGTERM

    def __init__(self) -> None:
        super().__init__(TERMINATED)


class Noted:
    """The first signal that came, and how many did."""

    def __init__(self) -> None:
        self.number: int | None = None
        self.count = 0


@contextmanager
def handle_signals(
    numbers: Sequence[signal.Signals], handler: Callable[[int, FrameType | None], None]
) -> Iterator[Callable[[], None]]:
    """Handle signals in here; yield a function that restores the former handlers.

    Outside the main thread nothing is changed: Python delivers no signals there. Signals that are ignored stay so, as
    for a command in the background of a shell.
    """
    main = threading.current_thread() is threading.main_thread()
    former = {each: signal.getsignal(each) for each in numbers} if main else {}
    former = {each: before for each, before in former.items() if before not in (signal.SIG_IGN, None)}

    def restore() -> None:
        for each, before in former.items():
            signal.signal(each, before)

    for each in former:
        signal.signal(each, handler)
    try:
        yield restore
    finally:
        restore()


@contextmanager
def exit_on_signals(*, at_once: bool = False) -> Iterator[None]:
    """Exit on SIGTERM, in here, with one line and status 143; with ``at_once`` also on Ctrl-C, with status 130.

    Signals that are ignored, or that somebody else handles, are left alone. A second SIGTERM ends the process at once.

    Args:
        at_once: end the process without an exception, for the time of imports: torch takes an exception while it
            imports numpy for a missing numpy, and breaks later.

    Raises:
        TerminatedError: on SIGTERM, unless ``at_once``.
    """
    owner = os.getpid()

    def leave(number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        if os.getpid() != owner:
            # A forked worker, which is not the command: end it as if there were no handler.
            os.kill(os.getpid(), number)
            return
        status, line = _LINES[signal.Signals(number)]
        # Not by print: the signal may have come in the middle of one.
        os.write(2, line)
        if at_once:
            os._exit(status)
        raise TerminatedError

    usual: dict[signal.Signals, Any] = {signal.SIGTERM: signal.SIG_DFL}
    if at_once:
        usual[signal.SIGINT] = signal.default_int_handler
    with handle_signals([each for each, handler in usual.items() if signal.getsignal(each) is handler], leave):
        yield


@contextmanager
def exit_with_line(line: Callable[[], str]) -> Iterator[None]:
    """Turn Ctrl-C and SIGTERM, and exceptions with the attribute ``signum``, into one line on stderr and an exit.

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
        number = signal.SIGINT if isinstance(stop, KeyboardInterrupt) else getattr(stop, "signum", None)
        if number is None:
            raise
        print(f"\n{line()}", file=sys.stderr, flush=True)
        raise SystemExit(128 + number) from None


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
