"""Progress bars with rate, time left and a note."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol


class WorkBar(Protocol):
    """What a task reports to its progress bar."""

    def advance(self, note: str = "", steps: int = 1) -> None:
        """Count finished steps."""
        ...

    def say(self, line: str) -> None:
        """Print a line above the bar."""
        ...


class _Silent:
    def advance(self, note: str = "", steps: int = 1) -> None:
        pass

    def say(self, line: str) -> None:
        pass


class _Rich:
    def __init__(self, progress: Any, task: Any) -> None:
        self.progress, self.task = progress, task

    def advance(self, note: str = "", steps: int = 1) -> None:
        self.progress.update(self.task, advance=steps, **({"note": note} if note else {}))

    def say(self, line: str) -> None:
        self.progress.console.print(line, highlight=False)


@contextmanager
def work_bar(title: str, first: int, last: int, shown: bool, unit: str = "steps") -> Iterator[WorkBar]:
    """Show a progress bar from ``first`` to ``last`` steps, or nothing.

    Example:
        >>> with work_bar("gsp", 0, 10, shown=False) as bar:
        ...     bar.advance("loss 1.0")
    """
    if not shown:
        yield _Silent()
        return
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    from rich.text import Text

    class Rate(ProgressColumn):
        def render(self, task: Any) -> Text:
            speed = task.finished_speed or task.speed
            return Text("" if speed is None else f"{speed:,.1f} {unit}/s")

    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        Rate(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    # Estimate over two minutes: evaluations between steps would make a shorter estimate jump.
    with Progress(*columns, speed_estimate_period=120) as progress:
        yield _Rich(progress, progress.add_task(title, total=last, completed=first, note=""))
