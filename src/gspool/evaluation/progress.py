"""A progress bar, if one is asked for."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextmanager
def progress_bar(title: str, total: int, shown: bool) -> Iterator[Callable[[], object]]:
    """Yield a function to be called after each of ``total`` steps; it moves a bar if one is ``shown`` (needs rich).

    Example:
        >>> with progress_bar("runs", total=2, shown=False) as advance:
        ...     advance()
    """
    if not shown:
        yield lambda: None
        return
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TimeRemainingColumn()) as bar:
        task = bar.add_task(title, total=total)
        yield lambda: bar.advance(task)
