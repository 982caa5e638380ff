"""Where tasks run, the worker that does them, and a failure in the place of a result."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any, NamedTuple

# Tasks that wait for each worker while it does another one.
AHEAD = 2
# A task whose process dies, with its machine or out of memory, is tried so often.
TRIES = 3


class Executor(NamedTuple):
    """Where tasks run.

    Attributes:
        workers: tasks at a time; 1 without Ray runs them in this process. 0 with Ray takes one a GPU, else one a core.
        ray: None for this machine; ``auto`` or an address for a Ray cluster, ``local`` for one that ends with the call.
        gpus: GPUs of one worker on Ray; 0.25 puts four on a GPU.
        cpus: cores of one worker on Ray.
    """

    workers: int = 1
    ray: str | None = None
    gpus: float = 0.0
    cpus: float = 1.0


class Failure(NamedTuple):
    """The result of a task that raised: the traceback, or how its process ended."""

    message: str


def attempt(make_worker: Callable[[], Callable[[Any], Any]], task: Any) -> Any:
    """Do a task; what it raises, or the making of the worker, is returned as a `Failure`."""
    try:
        return make_worker()(task)
    except Exception:
        return Failure(traceback.format_exc())
