"""Tasks in several processes of this machine.

One thread and one pipe a process: nothing is shared, so that a process that dies, even in the middle of writing a
result, ends its own pipe and blocks nobody. (A `ProcessPoolExecutor` shares queues and locks among its processes, and
waits for ever where one is killed at the wrong moment.)
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from itertools import takewhile
from queue import Empty, SimpleQueue
from typing import Any

from gspool.executor.worker import AHEAD, TRIES, Failure, attempt
from gspool.terminal.signals import Noted, blocked_signals, noted_signals

# Seconds between the request to stop and the end by force: long enough to write a checkpoint.
PATIENCE = 15.0
# Seconds of waiting for that after which a line says so.
SILENCE = 2.0
_END = object()


def run_on_processes(
    make_worker: Callable[[], Any], tasks: Iterable[Any], workers: int, *, ordered: bool
) -> Generator[tuple[Any, Any], None, None]:
    """Yield every task with its result; see `gspool.executor.run_tasks`."""
    left = iter(tasks)
    waiting: dict[Future[Any], Any] = {}
    # Wakes this thread when a task has ended or a signal has come; a put is safe in a signal handler.
    events: SimpleQueue[object] = SimpleQueue()
    with noted_signals(lambda: events.put(None)) as noted:
        pool = _Pool(make_worker, workers)
        threads = ThreadPoolExecutor(workers)
        try:
            while noted.number is None:
                while len(waiting) < workers * AHEAD and (task := next(left, _END)) is not _END:
                    if task is None:
                        break
                    future = threads.submit(pool.do, task)
                    waiting[future] = task
                    future.add_done_callback(events.put)
                if not waiting:
                    break
                # Not for ever: a signal that comes just before this thread waits does not wake it.
                with suppress(Empty):
                    events.get(timeout=0.5)
                # After a signal too: what is finished is kept.
                for future in _finished(waiting, ordered):
                    yield waiting.pop(future), future.result()
        finally:
            pool.close(noted)
            threads.shutdown(wait=True, cancel_futures=True)


def _finished(waiting: Iterable[Future[Any]], ordered: bool) -> list[Future[Any]]:
    """Return the finished tasks; if they are ordered, only those before the first that is not finished."""
    return [*takewhile(Future.done, waiting)] if ordered else [each for each in waiting if each.done()]


class _Pool:
    """Processes, each started when there is a task for it; one that dies is replaced only if it is the last."""

    def __init__(self, make_worker: Callable[[], Any], size: int) -> None:
        self._make_worker = make_worker
        self._lock = threading.Lock()
        self._processes: list[_Process] = []
        self._closed = False
        # Idle processes, and None for each that may still be started. Every thread that does a task takes one.
        self._free: SimpleQueue[_Process | None] = SimpleQueue()
        self._size = size
        for _ in range(size):
            self._free.put(None)

    def do(self, task: Any) -> Any:
        """Do a task in a process, again in another one if that dies."""
        ended = None
        for _ in range(TRIES):
            process = self._take()
            if process is None:
                return Failure("stopped")
            try:
                result = process.ask(task)
            except (EOFError, OSError):
                ended = process.end()
                self._lose(ended)
            except BaseException:
                self._free.put(process)
                raise
            else:
                self._free.put(process)
                return result
        return Failure(
            f"its process died {TRIES} times (exit code {ended}), out of memory perhaps; run fewer at a time"
        )

    def _take(self) -> _Process | None:
        """Return an idle process, or a new one; None where the pool is closed."""
        process = self._free.get()
        with self._lock:
            if self._closed:
                self._free.put(None)  # for the next thread that waits
                return None
        if process is None:
            # Not under the lock: a start lasts until the process has imported what it is sent, and several may do so.
            process = _Process(self._make_worker)
            with self._lock:
                self._processes.append(process)
                if self._closed:
                    process.process.kill()
                    self._free.put(None)
                    return None
        return process

    def _lose(self, exit_code: int | None) -> None:
        with self._lock:
            if self._closed or self._size == 1:
                self._free.put(None)
            else:
                # It was killed for memory most likely, and fewer processes need less.
                self._size -= 1
                left = f"{self._size} process{'es' * (self._size > 1)} left"
                print(f"a process died (exit code {exit_code}); {left}", file=sys.stderr, flush=True)

    def close(self, noted: Noted) -> None:
        """End every process: by SIGTERM, then by force after `PATIENCE` or a second signal."""
        with self._lock:
            self._closed = True
            processes = [each.process for each in self._processes]
        for process in processes:
            process.terminate()
        start, told = time.monotonic(), False
        while any(process.is_alive() for process in processes):
            past = time.monotonic() - start
            if past > PATIENCE or noted.count > 1:
                for process in processes:
                    process.kill()
            elif past > SILENCE and not told and noted.count:
                print("waiting for running tasks to save; Ctrl-C again ends them now", file=sys.stderr, flush=True)
                told = True
            time.sleep(0.02)
        self._free.put(None)  # wakes the threads that wait for a process, one after the other


class _Process:
    """A process that takes tasks, and the pipe to it."""

    def __init__(self, make_worker: Callable[[], Any]) -> None:
        context: Any = multiprocessing.get_context("spawn")
        self.pipe, other = context.Pipe()
        # Not daemonic: a worker may have processes of its own, to load data.
        start_method = multiprocessing.get_start_method(allow_none=True)
        self.process = context.Process(target=_serve, args=(make_worker, other, os.getpid(), start_method))
        with blocked_signals():
            self.process.start()
        # Only the process itself holds it now, so that the pipe ends with it.
        other.close()

    def ask(self, task: Any) -> Any:
        """Do a task.

        Raises:
            EOFError: if the process has died; or an OSError.
        """
        self.pipe.send(task)
        # Processes that the worker forked may hold the pipe open when it has died.
        while not self.pipe.poll(1.0):
            if not self.process.is_alive() and not self.pipe.poll():
                raise EOFError
        return self.pipe.recv()

    def end(self) -> int | None:
        """Wait for a process that has died, and return its exit code."""
        self.process.join(1.0)
        self.process.kill()
        code: int | None = self.process.exitcode
        return code


def _serve(make_worker: Callable[[], Any], pipe: Any, parent: int, start_method: str | None) -> None:
    """Take tasks from the pipe until it is closed."""
    # A spawned process spawns its own: every loader would import torch again, which takes seconds.
    multiprocessing.set_start_method(start_method, force=True)
    if hasattr(signal, "pthread_sigmask"):
        # Ctrl-C stays blocked, whatever handler a worker sets: the parent answers it.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM,))
    else:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Several processes with a thread for every core each would wait for each other. Whether torch has been imported by
    # now depends on the worker.
    os.environ["OMP_NUM_THREADS"] = "1"
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    make_once = functools.cache(make_worker)
    try:
        while True:
            result = attempt(make_once, pipe.recv())
            try:
                pipe.send(result)
            except OSError:
                raise
            except Exception:
                # The result cannot be pickled; nothing has been written yet.
                pipe.send(Failure(traceback.format_exc()))
    except (EOFError, OSError):
        return  # the parent has closed the pipe, or died
    except BaseException:
        # A worker that turns SIGTERM into an exception: the parent knows why it ends.
        raise SystemExit(128 + signal.SIGTERM) from None


def _end_with(parent: int) -> None:
    """End this process when its parent has died, by SIGTERM first."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(PATIENCE)
    os._exit(1)
