"""Processes that work side by side on one device, and end together with the process that began them."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing.connection import wait
from typing import Any, TypeVar

from torch import multiprocessing

from gspool.experiments.crew.member import PATIENCE, Broken, serve
from gspool.experiments.crew.stopping import TerminatedError, held_signals, noticed_signals

__all__ = ["Broken", "Crew", "CrewDiedError"]

Task = TypeVar("Task")
# Seconds of waiting for steps under way after which a person is told about it.
SILENT = 2.0


class CrewDiedError(RuntimeError):
    """Every process has ended, though there was work left."""


class Crew:
    """Processes that each do ``work(*given, task)``; each begins when there is a task for it, and stays.

    One that dies is not replaced: it was killed for memory, most likely, and fewer need less.

    Args:
        work: a function of a module, since it is found by its name in the processes.
        given: what all tasks share; tensors are in memory once.
        processes: how many tasks at a time at most.
    """

    def __init__(self, work: Callable[..., Any], given: tuple[Any, ...], processes: int) -> None:
        self.work, self.given, self.processes = work, given, processes
        self._begun = 0
        self._members: dict[Any, Any] = {}

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *_: object) -> None:
        self.dismiss()

    def answers(self, next_task: Callable[[], Task | None]) -> Iterator[tuple[Task, Any]]:
        """Give every task with its answer when it is done, `Broken` where it broke, in the order in which they end.

        Ctrl-C and SIGTERM are noticed between answers. Then tasks end at their next step; what is done by then is
        given as well.

        Args:
            next_task: asked whenever a process is free; None where there is nothing to do for now.

        Raises:
            CrewDiedError: if every process has died and there is work left.
            KeyboardInterrupt: after Ctrl-C, when all processes have ended.
            TerminatedError: after SIGTERM, likewise.
        """
        doing: dict[Any, Task] = {}
        with noticed_signals() as noticed:
            while noticed.number is None:
                while noticed.number is None and len(doing) < self._places() and (task := next_task()) is not None:
                    pipe = next((each for each in self._members if each not in doing), None) or self._begin()
                    doing[pipe] = task
                    # Of a process that has died, the pipe tells below.
                    with suppress(OSError):
                        pipe.send(task)
                if not doing:
                    self._check_somebody_lives(next_task)
                    return
                for pipe in wait([*doing, noticed.pipe]):
                    if pipe in doing:
                        yield doing.pop(pipe), self._read(pipe)
            try:
                yield from self._last_answers(doing)
            except (KeyboardInterrupt, TerminatedError):
                self.dismiss(patience=0.0)
                raise
            self.dismiss()
            noticed.raise_it()

    def dismiss(self, patience: float = PATIENCE) -> None:
        """Let the processes go: each ends at its next step, or is killed where it does not for so many seconds."""
        for pipe in self._members:
            pipe.close()
        end = time.monotonic() + patience
        for process in self._members.values():
            process.join(max(end - time.monotonic(), 0.0))
            if process.is_alive():
                process.kill()
                process.join()
        self._members.clear()

    def _places(self) -> int:
        return len(self._members) + self.processes - self._begun

    def _begin(self) -> Any:
        context = multiprocessing.get_context("spawn")
        pipe, other = context.Pipe()
        process = context.Process(target=serve, args=(self.work, self.given, other))
        with held_signals():
            process.start()
        # Only the process itself holds it now, so that the pipe ends with the process.
        other.close()
        self._begun += 1
        self._members[pipe] = process
        return pipe

    def _read(self, pipe: Any) -> Any:
        try:
            return pipe.recv()
        except (EOFError, OSError):
            process = self._members.pop(pipe)
            process.join()
            status = process.exitcode
            return Broken(f"its process ended with status {status}, killed for memory perhaps; run fewer at a time")

    def _check_somebody_lives(self, next_task: Callable[[], Task | None]) -> None:
        if not self._places() and next_task() is not None:
            raise CrewDiedError(
                "every process has ended with work left, killed for memory perhaps; run fewer at a time"
            )

    def _last_answers(self, doing: dict[Any, Task]) -> Iterator[tuple[Task, Any]]:
        for pipe in doing:
            with suppress(OSError):
                pipe.send(None)
        started, told = time.monotonic(), False
        while doing and (past := time.monotonic() - started) < PATIENCE:
            if past > SILENT and not told:
                print("\nsteps under way are ended first; Ctrl-C once more does not wait", file=sys.stderr, flush=True)
                told = True
            ready: list[Any] = wait([*doing], SILENT)
            for pipe in ready:
                task = doing.pop(pipe)
                with suppress(EOFError, OSError):
                    yield task, pipe.recv()
