"""Ctrl-C and SIGTERM as a request to stop after the current step, with everything saved."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType


class TrainingInterruptedError(RuntimeError):
    """A run was asked to stop and did, with a checkpoint of its last step."""

    def __init__(self, folder: Path, step: int) -> None:
        super().__init__(f"stopped after step {step}; go on with: gspool train --resume {folder}")
        self.folder, self.step = folder, step


class StopRequest:
    """Whether someone has asked the run to stop."""

    def __init__(self) -> None:
        self.asked = False


@contextmanager
def stop_on_signal() -> Iterator[StopRequest]:
    """Turn the first Ctrl-C or SIGTERM into a request; a second one interrupts at once, as usual."""
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        # Python delivers signals to the main thread alone; a run elsewhere is stopped by whoever started it.
        yield request
        return
    former = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def ask(number: int, frame: FrameType | None) -> None:
        request.asked = True
        for each, handler in former.items():
            signal.signal(each, handler)

    for number in former:
        signal.signal(number, ask)
    try:
        yield request
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
