"""Several trainings, by a crew or one after the other in this process: each is kept when it ends."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import closing
from typing import Any, TypeVar

from gspool.experiments.crew.bars import trainings_under_way
from gspool.experiments.crew.crew import Broken, Crew
from gspool.experiments.crew.stopping import told_when_stopped

Task = TypeVar("Task")


def make_trainings(
    work: Callable[..., Any],
    given: tuple[Any, ...],
    next_task: Callable[[], Task | None],
    of: int,
    processes: int,
    keep: Callable[[Task, Any], None],
    name: Callable[[Task], str],
) -> None:
    """Do ``work(*given, task)`` for one task after the other, and hand over every answer when it is there.

    Args:
        work: a function of a module; of a crew, it runs in processes of its own.
        given: what all tasks share.
        next_task: asked whenever there is room for another; None where there is nothing left to do.
        of: how many tasks there are.
        processes: how many at a time; 1 works in this process, where what breaks ends all.
        keep: called in this process with every task and its answer.
        name: what a task is called where it broke.

    Raises:
        RuntimeError: if tasks of a crew broke, after all others are done.
        SystemExit: after Ctrl-C or SIGTERM, with the status of the signal and a line about what is kept.

    Example:
        >>> numbers = iter([2, 3])
        >>> make_trainings(pow, (10,), lambda: next(numbers, None), 2, 1, print, str)
        2 100
        3 1000
    """
    kept, broken = 0, []
    with (
        told_when_stopped(lambda: kept, of),
        trainings_under_way(of if processes > 1 else 0) as one_more,
        closing(_answers(work, given, next_task, processes)) as answers,
    ):
        for task, answer in answers:
            if isinstance(answer, Broken):
                broken.append(f"{name(task)}: {answer.told}")
            else:
                keep(task, answer)
                kept += 1
            one_more()
    if broken:
        told = "\n".join(broken)
        raise RuntimeError(f"{len(broken)} of {of} trainings broke; the others are done. {told}")


def _answers(
    work: Callable[..., Any], given: tuple[Any, ...], next_task: Callable[[], Task | None], processes: int
) -> Generator[tuple[Task, Any], None, None]:
    if processes > 1:
        with Crew(work, given, processes) as crew:
            yield from crew.answers(next_task)
        return
    while (task := next_task()) is not None:
        yield task, work(*given, task)
