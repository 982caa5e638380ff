"""One process of a crew: takes tasks from a pipe, answers through it, ends when it is told to or left alone."""

from __future__ import annotations

import os
import signal
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, NamedTuple

import torch

# Seconds between the word to stop and the end by force. A step, or an evaluation, ends within them: a process that is
# killed in the middle of a kernel takes down all others on the same GPU where they share it by MPS.
PATIENCE = 15.0

_told = threading.Event()


class Broken(NamedTuple):
    """The answer of a task that broke."""

    told: str


class ToldToStopError(BaseException):
    """This process was told to stop; no `Exception`, so that nobody takes it for a task that broke."""


def leave_if_told() -> None:
    """Go no further where this process belongs to a crew that was told to stop; for loops, between two steps.

    Raises:
        ToldToStopError: in a process that was told to stop, and in no other.
    """
    if _told.is_set():
        raise ToldToStopError


def serve(work: Callable[..., Any], given: tuple[Any, ...], pipe: Any) -> None:
    """Do one task after the other as ``work(*given, task)``, until there are none or the pipe is closed."""
    mind_the_pipe_alone()
    torch.set_num_threads(1)
    tasks: SimpleQueue[Any] = SimpleQueue()
    threading.Thread(target=_listen, args=(pipe, tasks), daemon=True).start()
    # Where nobody reads answers any more, there is nothing left to do.
    with suppress(ToldToStopError, BrokenPipeError, ConnectionResetError):
        while (task := tasks.get()) is not None:
            pipe.send(_answer(work, given, task))


def mind_the_pipe_alone() -> None:
    """Leave Ctrl-C and SIGTERM, which reach a whole group of processes, to the process that hands out the tasks."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT, signal.SIGTERM))


def _answer(work: Callable[..., Any], given: tuple[Any, ...], task: Any) -> Any:
    try:
        return work(*given, task)
    except Exception:
        # Whatever it was, the others go on, and the process that asked tells it.
        return Broken(traceback.format_exc())


def _listen(pipe: Any, tasks: SimpleQueue[Any]) -> None:
    # The pipe ends also where the other process was killed and could not say anything.
    with suppress(EOFError, OSError):
        while (task := pipe.recv()) is not None:
            tasks.put(task)
    _told.set()
    tasks.put(None)
    time.sleep(PATIENCE)
    os._exit(1)
