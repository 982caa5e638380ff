"""Markdown tables: number formats, intervals, the paper's value beside ours, provenance, and the summary table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from gspool.experiments import registry
from gspool.provenance import read_result


def markdown_table(rows: Sequence[Mapping[str, Any]], style: str = "", *, text_columns: int | None = None) -> str:
    """Write rows as a Markdown table, one column a key; None is an empty cell.

    Args:
        rows: with the same keys, at least one row.
        style: the format of floats, such as ``.2f``.
        text_columns: how many columns at the start are aligned to the left; those of text unless given.

    Raises:
        ValueError: if there is no row, or keys differ.

    Example:
        >>> print(markdown_table([{"layer": "GSP", "n": 49, "error": 1e-16}], ".1e"))
        | layer | n | error |
        |---|---:|---:|
        | GSP | 49 | 1.0e-16 |
    """
    names = [*rows[0]] if rows and isinstance(rows[0], Mapping) else []
    if not names or any([*row] != names for row in rows):
        raise ValueError("a table is a list of dictionaries with the same keys, at least one row and one key")
    if text_columns is None:
        numbers = [any(isinstance(row[name], int | float) for row in rows) for name in names]
        text_columns = numbers.index(True) if True in numbers else 1
    lines = [names, *([cell(row[name], style) for name in names] for row in rows)]
    head, *body = (f"| {' | '.join(cells)} |" for cells in lines)
    return "\n".join([head, "|" + "---|" * text_columns + "---:|" * (len(names) - text_columns), *body])


def read_table(text: str) -> list[dict[str, str]]:
    """Read the rows of a Markdown table, for the terminal or to pick a cell.

    Example:
        >>> read_table("| layer | x |\\n|---|---:|\\n| gsp | **2** |")
        [{'layer': 'gsp', 'x': '**2**'}]
    """
    head, _, *body = ([each.strip() for each in line.strip("|").split("|")] for line in text.splitlines())
    return [dict(zip(head, row, strict=True)) for row in body]


def cell(value: Any, style: str = "") -> str:
    """Format a float, and write everything else as it is."""
    try:
        return "" if value is None else format(value, style) if isinstance(value, float) else str(value)
    except ValueError as wrong:
        raise ValueError(f"{style!r} is not a number format such as .1f, .2e or .3g ({wrong})") from wrong


def plus_minus(mean: float, std: float | None, digits: int = 2) -> str:
    """Write a mean with its standard deviation; without where there is one seed.

    Example:
        >>> plus_minus(20.051, 0.149), plus_minus(6.6, None, 1)
        ('20.05 ± 0.15', '6.6')
    """
    return f"{mean:.{digits}f}" if std is None else f"{mean:.{digits}f} ± {std:.{digits}f}"


def mean_std(values: Sequence[float]) -> tuple[float, float | None]:
    """Return mean and standard deviation (n - 1) with two digits, as results keep them; no deviation of one value.

    Example:
        >>> mean_std([1.0, 2.0, 3.0]), plus_minus(*mean_std([0.5]))
        ((2.0, 1.0), '0.50')
    """
    return round(fmean(values), 2), round(stdev(values), 2) if len(values) > 1 else None


def provenance(name: str, record: Mapping[str, Any]) -> str:
    """Write where a result comes from: file, command, device, version of torch, commits, date, note.

    Example:
        >>> provenance("toy", {"command": "x", "device": "CPU", "versions": {"torch": "2"}, "date": "2026-01-02"})
        '*results/toy.json: `x`, CPU, torch 2, 2026-01-02*'
    """
    state = commits(record)
    note = f". {record['note']}" if record.get("note") else ""
    return (
        f"*results/{name}.json: `{record['command']}`, {record['device']}, torch {record['versions']['torch']}, "
        f"{state}{', ' if state else ''}{record['date']}{note}*"
    )


def commits(record: Mapping[str, Any], brief: bool = False) -> str:
    """Write the commit of a result, or those of its runs with their numbers of runs; empty where none is known.

    ``brief`` names only the commit of most runs.

    Example:
        >>> commits({"commit": "0123456789", "uncommitted_changes": True}), commits({})
        ('commit 0123456 and changes', '')
        >>> mixed = {"origins": [{"commit": "0123456789", "runs": 2}, {"commit": "abcdef012", "runs": 10}]}
        >>> commits(mixed), commits(mixed, brief=True)
        ('commits 0123456 (2 runs), abcdef0 (10)', 'commit abcdef0 and 1 other')
    """
    runs: dict[str, int] = {}
    for origin in record.get("origins", [record]):
        if origin.get("commit"):
            word = f"{origin['commit'][:7]}{' and changes' if origin.get('uncommitted_changes') else ''}"
            runs[word] = runs.get(word, 0) + origin.get("runs", 1)
    if len(runs) < 2:
        return "".join(f"commit {word}" for word in runs)
    if brief:
        more = len(runs) - 1
        return f"commit {max(runs, key=runs.__getitem__)} and {more} other{'s' * (more > 1)}"
    (first, count), *others = runs.items()
    return ", ".join([f"commits {first} ({count} runs)", *(f"{word} ({count})" for word, count in others)])


def headline_table(results: Path) -> str:
    """Write the figures that stand for each experiment, the paper's beside ours, and where they come from."""
    rows = []
    for name in registry.names():
        experiment = registry.find(name)
        path = results / f"{experiment.files[0]}.json"
        if experiment.headlines is None or not path.is_file():
            rows.append((name, experiment.claim, "", registry.status(experiment, results), ""))
            continue
        record = read_result(path)
        origin = ", ".join(word for word in (record["device"], commits(record, brief=True)) if word)
        rows += [(name, each.what, each.paper, each.ours, origin) for each in experiment.headlines(record["value"])]
    names = ("experiment", "figure", "paper", "ours", "device, commit")
    return markdown_table([dict(zip(names, row, strict=True)) for row in rows], text_columns=2)
