"""Run many tasks: in this process, in several processes of this machine, or on a Ray cluster. One function for all.

`reproduce`, `embed` and whatever trains many heads share it. A worker is made once a process (it may hold a model or a
data set) and then takes tasks one after the other.
"""

from __future__ import annotations

import os
import signal
import threading
import time
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

Task = TypeVar("Task")
Result = TypeVar("Result")

LOCAL = "local"
# Tasks that wait at a worker while it does another one.
AHEAD = 2
# A worker that dies, with its machine or for want of memory, is replaced and its task repeated so often.
RETRIES = 3
# Seconds between the request to stop and the end by force: long enough to write a checkpoint.
PATIENCE = 15.0


class Executor(NamedTuple):
    """Where tasks run.

    Args:
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


def run_tasks(
    make_worker: Callable[[], Callable[[Task], Result]],
    tasks: Iterable[Task],
    executor: Executor | None = None,
    *,
    ordered: bool = False,
) -> Generator[tuple[Task, Result | Failure], None, None]:
    """Yield every task with its result as soon as there is one.

    Tasks are read as workers become free, so the iterable may end early. In this process an exception is raised as
    usual; elsewhere the task yields a `Failure` and the others go on.

    Args:
        make_worker: called once in every process, gives the function that takes tasks; must be picklable.
        tasks: picklable.
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
        yield from _on_ray(make_worker, tasks, executor, ordered)
    elif executor.workers > 1:
        yield from _on_processes(make_worker, tasks, executor.workers, ordered)
    else:
        worker = make_worker()
        for task in tasks:
            yield task, worker(task)


def _on_processes(
    make_worker: Callable[[], Any], tasks: Iterable[Any], workers: int, ordered: bool
) -> Generator[tuple[Any, Any], None, None]:
    left = iter(tasks)
    again: deque[tuple[Any, int]] = deque()
    while True:
        pool = ProcessPoolExecutor(workers, _spawn(), initializer=_begin, initargs=(make_worker,))
        running: dict[Future[Any], tuple[Any, int]] = {}
        try:
            while True:
                while len(running) < workers * AHEAD:
                    task = again.popleft() if again else next(((each, 0) for each in left), None)
                    if task is None:
                        break
                    with _signals_blocked():
                        running[pool.submit(_do, task[0])] = task
                if not running:
                    return
                wait([next(iter(running))] if ordered else running, return_when=FIRST_COMPLETED)
                for future in [future for future in running if future.done()]:
                    result = future.result()
                    yield running.pop(future)[0], result
                    if ordered:
                        break
        except BrokenProcessPool:
            # One process died and took the pool with it. Fewer need less memory; its task may be the one to blame.
            workers = max(1, workers // 2)
            for task, tries in running.values():
                if tries + 1 < RETRIES:
                    again.append((task, tries + 1))
                else:
                    yield task, Failure("its process was killed, for want of memory perhaps; run fewer at a time")
        finally:
            _end(pool)


def _spawn() -> Any:
    from torch import multiprocessing

    return multiprocessing.get_context("spawn")


def _end(pool: ProcessPoolExecutor) -> None:
    """End the processes of a pool, whatever they do: by SIGTERM first, so that a training can save itself."""
    processes = list((pool._processes or {}).values())
    pool.shutdown(wait=False, cancel_futures=True)
    for process in processes:
        process.terminate()
    deadline = time.monotonic() + PATIENCE
    for process in processes:
        process.join(max(deadline - time.monotonic(), 0.0))
        if process.is_alive():
            process.kill()
            process.join()


_worker: Callable[[Any], Any] | None = None


def _begin(make_worker: Callable[[], Callable[[Any], Any]]) -> None:
    """Start a process of the pool. Ctrl-C reaches the whole group; the process that hands out tasks answers it."""
    global _worker
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT, signal.SIGTERM))
    threading.Thread(target=_leave_with_parent, args=(os.getppid(),), daemon=True).start()
    _worker = make_worker()


def _leave_with_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


def _do(task: Any) -> Any:
    assert _worker is not None
    try:
        return _worker(task)
    except Exception:
        return Failure(traceback.format_exc())


@contextmanager
def _signals_blocked() -> Iterator[None]:
    """Block signals while a process starts, which starts with the same mask: `_begin` lifts it.

    Otherwise Ctrl-C would end it with a traceback while it still imports.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    from multiprocessing import resource_tracker

    # It starts together with the first process, and would lift the mask.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Actor:
    """A worker on Ray, made with its first task: an actor that was started again has none."""

    def __init__(self, make_worker: list[Any]) -> None:
        self.make_worker, self.worker = make_worker, None

    def do(self, task: Any) -> Any:
        try:
            if self.worker is None:
                self.worker = import_ray().get(self.make_worker[0])()
            return self.worker(task)
        except Exception:
            return Failure(traceback.format_exc())


def _on_ray(
    make_worker: Callable[[], Any], tasks: Iterable[Any], executor: Executor, ordered: bool
) -> Generator[tuple[Any, Any], None, None]:
    ray = import_ray()
    left = iter(tasks)
    first = next(left, None)
    if first is None:
        return  # a cluster takes seconds to start, or to wait for
    _join(ray, str(executor.ray))
    try:
        resources = ray.cluster_resources()
        gpus, cores = resources.get("GPU", 0.0), resources.get("CPU", 1.0)
        share = min(executor.gpus, gpus)
        count = executor.workers or max(1, int(gpus // share if share else cores // executor.cpus))
        # A worker that asks for more than there is would never start, and its tasks would wait for ever.
        share = min(share, gpus / count)
        kind = ray.remote(num_cpus=min(executor.cpus, cores), num_gpus=share)(_Actor)
        # In a list, Ray passes the reference on and keeps one copy of what it points to.
        shared = [ray.put(make_worker)]
        idle = deque(kind.options(max_restarts=RETRIES, max_task_retries=RETRIES).remote(shared) for _ in range(count))
        running: dict[Any, tuple[Any, Any]] = {}
        waiting: Any = first
        while running or waiting is not None:
            while waiting is not None and len(running) < count * AHEAD:
                actor = (
                    idle.popleft()
                    if idle
                    else min(
                        (each for each, _ in running.values()),
                        key=lambda one: sum(other is one for other, _ in running.values()),
                    )
                )
                running[actor.do.remote(waiting)] = (actor, waiting)
                waiting = next(left, None)
            ready, _ = ray.wait([next(iter(running))] if ordered else list(running), num_returns=1)
            actor, task = running.pop(ready[0])
            if all(other is not actor for other, _ in running.values()):
                idle.append(actor)
            try:
                result = ray.get(ready[0])
            except ray.exceptions.RayError as error:
                result = Failure(str(error))
            yield task, result
    finally:
        ray.shutdown()


def import_ray() -> Any:
    """Import Ray.

    Raises:
        ValueError: if it is not installed.
    """
    try:
        import ray
    except ImportError as error:
        raise ValueError('a Ray cluster needs Ray: pip install "gspool[ray]"') from error
    return ray


def _join(ray: Any, address: str) -> None:
    quiet = {"logging_level": "error", "log_to_driver": False, "configure_logging": True}
    if address == LOCAL:
        # A cluster for one command reports to nobody.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        with warnings.catch_warnings():
            # LanceDB warns of forked children; Ray's run another program at once.
            warnings.filterwarnings("ignore", "lancedb fork support", RuntimeWarning)
            ray.init(address=LOCAL, include_dashboard=False, **quiet)
        return
    try:
        ray.init(address=address, **quiet)
    except (ConnectionError, ValueError) as error:
        first = str(error).splitlines()[0]
        raise ValueError(
            f"there is no Ray cluster at {address!r} ({first}); start one with `ray start --head`, or give {LOCAL}"
        ) from error
