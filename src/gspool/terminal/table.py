"""Tables for the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

# Characters of a cell that is never broken: a number, or the name of a metric.
SHORT = 10


def show_table(title: str, rows: Mapping[str, Mapping[str, float]]) -> None:
    """Print metrics in percent, one row for each model."""
    names = [*next(iter(rows.values()))]
    percent = [
        {"": row, **{name.upper(): f"{100 * metrics[name]:.2f}" for name in names}} for row, metrics in rows.items()
    ]
    show_rows(f"{title}, percent", percent)


def show_rows(title: str, rows: Sequence[Mapping[str, str]]) -> None:
    """Print rows of text with the same keys as a table."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for place, name in enumerate(rows[0]):
        # In a narrow terminal words are broken, numbers never.
        short = bool(place) and all(len(row[name]) <= SHORT for row in [*rows, {name: name}])
        side: Literal["left", "right"] = "right" if place else "left"
        table.add_column(name, justify=side, no_wrap=short, overflow="fold", min_width=0 if short else SHORT)
    for row in rows:
        table.add_row(*row.values())
    Console().print(table)
