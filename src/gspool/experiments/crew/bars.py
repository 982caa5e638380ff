"""How far the work is, on a terminal: the steps of one training, or how many of several trainings are finished."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import parent_process
from typing import Protocol

from gspool.experiments.crew.member import leave_if_told
from gspool.terminal.bar import work_bar


class Made(Protocol):
    """Called after every step; the note stands behind the bar until there is another."""

    def __call__(self, note: str = "") -> None:
        """Another step is done."""
        ...


def on_a_terminal() -> bool:
    """Say whether a person looks on; files and processes of a crew get no bars."""
    return sys.stdout.isatty() and sys.stderr.isatty() and parent_process() is None


@contextmanager
def steps_under_way(title: str, first: int, last: int) -> Iterator[Made]:
    """Give what the loop of a training calls after each step: it moves a bar, and ends a process that was told to stop.

    Example:
        >>> with steps_under_way("gsp, seed 0", 0, 3) as made:
        ...     for step in range(3):
        ...         made(f"loss {step}")
    """
    with work_bar(title, first, last, on_a_terminal()) as bar:

        def made(note: str = "") -> None:
            leave_if_told()
            bar.advance(note)

        yield made


@contextmanager
def trainings_under_way(of: int) -> Iterator[Callable[[], None]]:
    """Give what is called when one of several trainings ends: it moves a bar, with the expected time left.

    Example:
        >>> with trainings_under_way(of=2) as ended:
        ...     ended()
    """
    if not on_a_terminal() or not of:
        yield lambda: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("trainings"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[left]}"),
    )
    started = time.monotonic()
    with Progress(*columns) as progress:
        task = progress.add_task("", total=of, left="")
        finished = 0

        def ended() -> None:
            nonlocal finished
            finished += 1
            progress.update(task, advance=1, left=expected_left(time.monotonic() - started, finished, of))

        yield ended


def expected_left(seconds: float, finished: int, of: int) -> str:
    """Write how long the others take, going by those that have ended.

    Example:
        >>> expected_left(600.0, 4, 10), expected_left(30.0, 2, 3), expected_left(9.0, 3, 3)
        ('about 15 min left', 'about 15 s left', '')
    """
    left = seconds / finished * (of - finished)
    if not left:
        return ""
    return f"about {left / 60:.0f} min left" if left >= 90 else f"about {left:.0f} s left"
