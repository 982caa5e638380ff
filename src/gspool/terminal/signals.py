"""Ctrl-C and SIGTERM: one line and the usual exit status, where a command does not handle them itself."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

INTERRUPTED, TERMINATED = 130, 143
_LINES = {signal.SIGINT: (INTERRUPTED, b"\ninterrupted\n"), signal.SIGTERM: (TERMINATED, b"\nterminated\n")}


class Terminated(SystemExit):
    """Raised in the main thread by SIGTERM, so that temporary files are removed and locks released."""


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
        Terminated: on SIGTERM, unless ``at_once``.
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
        raise Terminated(status)

    usual: dict[signal.Signals, Any] = {signal.SIGTERM: signal.SIG_DFL}
    if at_once:
        usual[signal.SIGINT] = signal.default_int_handler
    with handle_signals([each for each, handler in usual.items() if signal.getsignal(each) is handler], leave):
        yield
