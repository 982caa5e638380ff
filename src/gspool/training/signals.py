"""Ctrl-C and SIGTERM: stop between two steps with everything saved, all processes together."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from gspool.executor.signals import SIGNALS, TerminatedError

# Set by the process that launches others, so that they know whose children they are.
LAUNCHER = "GSPOOL_LAUNCHER"


class TrainingInterruptedError(RuntimeError):
    """A run was asked to stop and did; ``--resume`` goes on. ``signum`` is the signal, ``status`` the exit status."""

    def __init__(self, folder: Path, step: int | None = None, signum: int = signal.SIGINT) -> None:
        after = "" if step is None else f" after step {step}"
        super().__init__(f"stopped{after}; go on with: gspool train --resume {folder}")
        self.folder, self.step, self.signum = folder, step, signum or signal.SIGINT

    @property
    def status(self) -> int:
        """The exit status of a process that ends by this signal: 130 for Ctrl-C, 143 for SIGTERM."""
        return 128 + self.signum


def is_one_of_several() -> bool:
    """Check whether this process belongs to a run of several, connected or not yet."""
    return any(os.environ.get(name, "1") not in ("", "1") for name in ("WORLD_SIZE", "SLURM_NTASKS"))


class StopRequest:
    """Whether the run was asked to stop.

    While ``immediate``, a signal raises KeyboardInterrupt or `TerminatedError` on the spot. In the step loop, and for
    the processes of one run at any time, it is noted in ``signum`` and looked at between steps: processes must leave
    together, or the others wait in a collective for the one that has left, and only there can they agree.
    """

    def __init__(self) -> None:
        self.signum = 0
        self.immediate = not is_one_of_several()

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Take note of a signal. A second Ctrl-C interrupts at once; a second SIGTERM changes nothing."""
        again = self.signum == signal.SIGINT and number == signal.SIGINT
        self.signum = number
        if self.immediate or again:
            raise KeyboardInterrupt if number == signal.SIGINT else TerminatedError


@contextmanager
def stop_on_signal() -> Iterator[StopRequest]:
    """Turn Ctrl-C and SIGTERM into a `StopRequest`; within another such context, into the same one.

    Python delivers signals to the main thread alone: in another thread, whoever started it stops it.
    """
    active = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)
    request = active if isinstance(active, StopRequest) else StopRequest()
    if active is request or threading.current_thread() is not threading.main_thread():
        yield request
        return
    former: dict[int, Any] = {number: signal.signal(number, request.handle) for number in SIGNALS}
    try:
        yield request
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


def is_launched() -> bool:
    """Check whether this process is a rank that the first rank has launched."""
    return os.environ.get(LAUNCHER, "") not in ("", str(os.getpid()))


def leave_with_launcher() -> None:
    """End this rank when the process that launched it has died: it would wait for it in a collective."""
    launcher = int(os.environ[LAUNCHER])

    def watch() -> None:
        while os.getppid() == launcher:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True, name="watch-launcher").start()
