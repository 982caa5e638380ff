"""Run a grid of trainings: those that are missing, in one process or many, each kept when it ends."""

from __future__ import annotations

import functools
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

from gspool.executor import Executor, Failure, run_tasks
from gspool.executor.run_store import RunStore
from gspool.terminal.bar import work_bar
from gspool.terminal.signals import exit_with_line

Asked = Mapping[str, Any]
# Takes what is asked for and the seconds left (0: no limit); returns what it found, None if time ran out before.
Worker = Callable[[Asked, float], Mapping[str, Any] | None]


class FailedRunsError(RuntimeError):
    """Some runs of a grid failed; ``failures`` has one text for each, the last line says why."""

    def __init__(self, message: str, failures: Sequence[str]) -> None:
        super().__init__(message)
        self.failures = list(failures)


def run_grid(
    store: RunStore,
    jobs: Sequence[Asked],
    make_worker: Callable[[], Worker],
    executor: Executor | None = None,
    seconds: float = 0.0,
    name: str = "trainings",
    own_bars: bool = True,
    then: Callable[[], Sequence[Asked]] | None = None,
) -> int:
    """Run the jobs that the store does not hold, and put each into it when it ends.

    Args:
        store: finished runs.
        jobs: what is asked for, plain JSON; the store looks runs up by it.
        make_worker: called once in every process, returns the function that does a job: a module's function, or a
            `functools.partial` of one, because it is pickled.
        executor: where jobs run; this process unless given.
        seconds: no job starts after this time, and workers learn how much of it is left; 0 for no limit.
        name: what the jobs are, in the plural.
        own_bars: whether every job of this process shows a bar of its own; if not, one bar counts the jobs.
        then: called when all jobs have ended, returns further jobs, such as those that depend on their results; the
            same processes do them.

    Returns:
        How many jobs are left because time ran out.

    Raises:
        FailedRunsError: if jobs failed, after all others have ended.
        SystemExit: after Ctrl-C or SIGTERM, with 130 or 143 and a line about what is kept.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> def make_worker():
        ...     return lambda asked, seconds: {"square": asked["number"] ** 2}
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     store = RunStore(Path(folder) / "runs.jsonl")
        ...     left = run_grid(store, [{"number": 2}, {"number": 3}], make_worker)
        ...     left, store.get({"number": 3})
        (0, {'square': 9})
    """
    executor = executor or Executor()
    deadline = time.time() + seconds if seconds else None

    def missing(wanted: Sequence[Asked]) -> list[Asked]:
        return [dict(asked) for asked in wanted if store.get(asked) is None]

    first = missing(jobs)
    total, running, done, failures = len(first), 0, 0, []

    def started(wanted: Sequence[Asked]) -> Iterator[Asked]:
        nonlocal running
        for job in wanted:
            if deadline is not None and time.time() >= deadline:
                return
            running += 1
            yield job

    def tasks() -> Iterator[Asked | None]:
        nonlocal total
        yield from started(first)
        if then is None:
            return
        while running:
            yield None
        more = missing(then())
        total += len(more)
        bar.extend(len(more))
        yield from started(more)

    several = executor.workers != 1 or executor.ray is not None
    make = functools.partial(_make_timed if several else _make_attempts, make_worker, deadline)
    shown = (several or not own_bars) and total > 1 and sys.stderr.isatty()
    with (
        exit_with_line(lambda: f"stopped; {done} of {total} {name} are kept, the same command continues"),
        work_bar(name, 0, total, shown, unit=name) as bar,
        closing(run_tasks(make, tasks(), executor)) as results,
    ):
        for asked, found in results:
            running -= 1
            if isinstance(found, Failure):
                failures.append(f"{_words(asked)}: {found.message}")
            elif found is not None:
                store.put(asked, found)
                done += 1
            bar.advance()
    if failures:
        told = f"{len(failures)} of {total} {name} failed; the others are kept.\n" + "\n".join(failures)
        raise FailedRunsError(told, failures)
    if done < total:
        print(f"time is up: {total - done} of {total} {name} are left; the same command continues", flush=True)
    return total - done


def _make_timed(make_worker: Callable[[], Worker], deadline: float | None) -> Callable[[Asked], Any]:
    worker = make_worker()

    def work(asked: Asked) -> Any:
        # A deadline that passed while the job waited in a queue must not read as "no limit".
        return worker(asked, 0.0 if deadline is None else max(deadline - time.time(), 1e-3))

    return work


def _make_attempts(make_worker: Callable[[], Worker], deadline: float | None) -> Callable[[Asked], Any]:
    """Make a worker of this process that returns a `Failure` as those of other processes do."""
    worker = _make_timed(make_worker, deadline)

    def work(asked: Asked) -> Any:
        try:
            return worker(asked)
        except Exception as error:
            if hasattr(error, "signum"):  # the end of a training that was asked to stop
                raise
            return Failure(traceback.format_exc())

    return work


def _words(asked: Asked) -> str:
    return ", ".join(f"{name} {value}" for name, value in asked.items())
