"""Run many tasks: in this process, in several processes of this machine, or on a Ray cluster. One function for all.

`reproduce`, `embed` and whatever trains many heads share it. A worker is made once a process (it may hold a model or a
data set) and then takes tasks one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from typing import TypeVar

from gspool.executor.processes import run_on_processes
from gspool.executor.ray_cluster import import_ray, run_on_ray
from gspool.executor.worker import Executor, Failure

__all__ = ["Executor", "Failure", "import_ray", "run_tasks"]

Task = TypeVar("Task")
Result = TypeVar("Result")


def run_tasks(
    make_worker: Callable[[], Callable[[Task], Result]],
    tasks: Iterable[Task | None],
    executor: Executor | None = None,
    *,
    ordered: bool = False,
) -> Generator[tuple[Task, Result | Failure], None, None]:
    """Yield every task with its result as soon as there is one.

    Tasks are read as workers become free, so the iterable may end early. In this process an exception is raised as
    usual; elsewhere the task yields a `Failure` and the others continue. Ctrl-C or SIGTERM first ends the processes
    (by SIGTERM, so that a training can save itself; a second signal kills them) and then takes its usual effect here.

    Args:
        make_worker: called once in every process, returns the function that takes tasks; must be picklable.
        tasks: picklable. None stands for a task that depends on one that is still running: ask again after that.
        executor: where they run; this process unless given.
        ordered: yield in the order of the tasks instead of the order in which they finish.

    Raises:
        ValueError: if Ray is not installed, or there is no cluster at the address.

    Example:
        >>> def make_worker():
        ...     return lambda number: number**2
        >>> list(run_tasks(make_worker, [2, 3]))
        [(2, 4), (3, 9)]
    """
    executor = executor or Executor()
    if executor.ray is not None:
        yield from run_on_ray(make_worker, tasks, executor, ordered=ordered)
    elif executor.workers > 1:
        yield from run_on_processes(make_worker, tasks, executor.workers, ordered=ordered)
    else:
        worker = make_worker()
        for task in tasks:
            if task is not None:
                yield task, worker(task)
