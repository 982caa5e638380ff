"""Ctrl-C and SIGTERM: one line and the usual exit status, where a command does not handle them itself."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

INTERRUPTED, TERMINATED = 130, 143
_LINES = {signal.SIGINT: (INTERRUPTED, b"\ninterrupted\n"), signal.SIGTERM: (TERMINATED, b"\nterminated\n")}


class Terminated(SystemExit):
    """Raised in the main thread by SIGTERM, so that temporary files are removed and locks released."""


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

    usual: dict[int, Any] = {signal.SIGTERM: signal.SIG_DFL}
    if at_once:
        usual[signal.SIGINT] = signal.default_int_handler
    # Only the main thread may set handlers.
    is_main = threading.current_thread() is threading.main_thread()
    ours = [number for number, handler in usual.items() if is_main and signal.getsignal(number) is handler]
    for number in ours:
        signal.signal(number, leave)
    try:
        yield
    finally:
        for number in ours:
            if signal.getsignal(number) is leave:
                signal.signal(number, usual[number])
