"""Progress bars with rate, time left and a note."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any


class WorkBar:
    """What a task reports to its progress bar; one that is not shown prints nothing."""

    def __init__(self, progress: Any = None, task: Any = None) -> None:
        self.progress, self.task = progress, task

    def advance(self, note: str = "", steps: int = 1) -> None:
        """Count finished steps."""
        if self.progress is not None:
            self.progress.update(self.task, advance=steps, **({"note": note} if note else {}))

    def extend(self, steps: int) -> None:
        """Expect further steps."""
        if self.progress is not None:
            known = next(each.total for each in self.progress.tasks if each.id == self.task)
            self.progress.update(self.task, total=(known or 0) + steps)

    def say(self, line: str) -> None:
        """Print a line above the bar."""
        if self.progress is not None:
            self.progress.console.print(line, highlight=False)


@contextmanager
def work_bar(title: str, first: int, last: int, shown: bool, unit: str = "steps") -> Iterator[WorkBar]:
    """Show a progress bar from ``first`` to ``last`` steps, or nothing.

    Example:
        >>> with work_bar("gsp", 0, 10, shown=False) as bar:
        ...     bar.advance("loss 1.0")
    """
    if not shown:
        yield WorkBar()
        return
    from rich import progress as rich

    class Rate(rich.ProgressColumn):
        def render(self, task: Any) -> str:
            # Of the whole task once it is done: the last reports may have come all at once.
            speed = (task.completed - first) / task.elapsed if task.finished and task.elapsed else task.speed
            return "" if speed is None else f"{speed:,.1f} {unit}/s"

    class Clock(rich.ProgressColumn):
        def render(self, task: Any) -> str:
            passed, left = timedelta(seconds=int(task.elapsed or 0)), task.time_remaining
            return f"{passed}" if task.finished or left is None else f"{passed}, {timedelta(seconds=int(left))} left"

    columns = (
        rich.TextColumn("{task.description}"),
        rich.BarColumn(bar_width=12),
        rich.MofNCompleteColumn(),
        Rate(),
        Clock(),
        rich.TextColumn("{task.fields[note]}"),
    )
    # Estimate over two minutes: evaluations between steps would make a shorter estimate jump.
    with rich.Progress(*columns, speed_estimate_period=120) as progress:
        yield WorkBar(progress, progress.add_task(title, total=last, completed=first, note=""))
