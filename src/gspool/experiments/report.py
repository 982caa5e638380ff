"""Put measured numbers into the documents: what stands between two markers is taken from a file in results/.

A marker names the file, the way to the value in it, how to write a number, and which columns of a table to show:

    <!-- results:toy value -->                                  the rows under "value" of results/toy.json, as a table
    <!-- /results -->
    <!-- results:cpu value .1f tokens,milliseconds.gsp -->      two columns of it, the second out of a dictionary
    <!-- /results -->
    off by <!-- results:solver value.worst .1e -->?<!-- /results -->    one number in the middle of a sentence

    python -m gspool.experiments.report             # fill README.md and docs/*.md anew
    python -m gspool.experiments.report --check     # only say whether they are up to date
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gspool.experiments.experiment import NOT_RUN
from gspool.provenance import read_measured, read_result

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_OPENED = re.compile(r"<!-- results:(?P<marker>[^>]*?) -->")
_FILLED = re.compile(_OPENED.pattern + r"(?P<old>(?:(?!<!-- results:).)*?)<!-- /results -->", re.DOTALL)
_CODE = re.compile(r"^(```|~~~).*?^\1", re.DOTALL | re.MULTILINE)


def documents(root: Path) -> list[Path]:
    """List what may hold results: README.md and the pages under docs/."""
    return [path for path in (root / "README.md", *sorted(root.glob("docs/**/*.md"))) if path.is_file()]


def filled(text: str, results: Path) -> str:
    """Write the measured values between the markers of a text; what stands in code blocks stays.

    Raises:
        ValueError: if a marker is not closed, or names a result, a value or a format that does not exist.

    Example:
        >>> filled("nothing measured here", Path("results"))
        'nothing measured here'
    """
    parts, end = [], 0
    for code in _CODE.finditer(text):
        parts += [_filled_prose(text[end : code.start()], results), code.group()]
        end = code.end()
    return "".join([*parts, _filled_prose(text[end:], results)])


def _filled_prose(text: str, results: Path) -> str:
    opened, closed = len(_OPENED.findall(text)), len(_FILLED.findall(text))
    if opened != closed or text.count("<!-- /results -->") != closed:
        raise ValueError(f"{opened} results markers are opened and {closed} of them closed by <!-- /results -->")
    return _FILLED.sub(lambda found: _section(found["marker"], results), text)


def _section(marker: str, results: Path) -> str:
    words = marker.split()
    if not 1 <= len(words) <= 4:
        raise ValueError(f"a marker reads results:FILE [PATH [FORMAT [COLUMN,COLUMN...]]], got {marker!r}")
    name, path, style, columns = words + ["", "value", "g", ""][len(words) :]
    record = read_measured(results / f"{name}.json")
    value = found_value(record, path, name)
    if isinstance(value, list):
        rows = [chosen(row, columns.split(","), name) for row in value] if columns else value
        inside = f"\n{table(rows, style)}\n\n{caption(name, record)}\n"
    else:
        inside = written(value, style)
    return f"<!-- results:{marker} -->{inside}<!-- /results -->"


def found_value(record: Any, path: str, name: str) -> Any:
    """Follow a path such as ``value.worst.float32`` or ``value.0.mu`` into a result.

    Raises:
        ValueError: if it leads nowhere, with the names that there are.
    """
    value = record
    for step in path.split("."):
        inside = {str(i): each for i, each in enumerate(value)} if isinstance(value, list) else value
        if not isinstance(inside, dict) or step not in inside:
            there = ", ".join(inside) if isinstance(inside, dict) else "no names but a single value"
            raise ValueError(f"results/{name}.json has no {path!r}: in the place of {step!r} there are {there}")
        value = inside[step]
    return value


def chosen(row: Any, columns: Sequence[str], name: str) -> dict[str, Any]:
    """Pick columns of a row by their paths; a heading is the last part of its path, with spaces."""
    return {column.rpartition(".")[2].replace("_", " "): found_value(row, column, name) for column in columns}


def written(value: Any, style: str) -> str:
    """Write a float in the asked format, and everything else as it is."""
    try:
        return format(value, style) if isinstance(value, float) else str(value)
    except ValueError as wrong:
        raise ValueError(f"{style!r} is not a number format such as .1f, .2e or .3g ({wrong})") from wrong


def table(rows: Sequence[Mapping[str, Any]], style: str) -> str:
    """Write rows as a Markdown table, one column a key.

    Example:
        >>> print(table([{"n": 1, "error": 0.25}, {"n": 49, "error": 1e-16}], ".1e"))
        | n | error |
        |---:|---:|
        | 1 | 2.5e-01 |
        | 49 | 1.0e-16 |
    """
    names = [*rows[0]] if rows and isinstance(rows[0], dict) else []
    if not names or any([*row] != names for row in rows):
        raise ValueError("a table is a list of dictionaries with the same keys, at least one row and one key")
    lines = [names, *([written(row[name], style) for name in names] for row in rows)]
    head, *body = (f"| {' | '.join(cells)} |" for cells in lines)
    return "\n".join([head, "|" + "---:|" * len(names), *body])


def commits_told(record: Mapping[str, Any], brief: bool = False) -> str:
    """Name the commit of a result, or those of its runs with how many each has; nothing where none is known.

    ``brief`` names only that of most runs.

    Example:
        >>> commits_told({"commit": "0123456789", "uncommitted_changes": True}), commits_told({})
        ('commit 0123456 and changes', '')
        >>> mixed = {"origins": [{"commit": "0123456789", "runs": 2}, {"commit": "abcdef012", "runs": 10}]}
        >>> commits_told(mixed), commits_told(mixed, brief=True)
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
        # Dates are those of days, so that the latest is not known.
        more = len(runs) - 1
        return f"commit {max(runs, key=runs.__getitem__)} and {more} other{'s' * (more > 1)}"
    (first, count), *others = runs.items()
    return ", ".join([f"commits {first} ({count} runs)", *(f"{word} ({count})" for word, count in others)])


def caption(name: str, record: Mapping[str, Any]) -> str:
    """Say under a table where it comes from, and what else was noted about it."""
    state = commits_told(record)
    return (
        f"*results/{name}.json: `{record['command']}`, {record['device']}, torch {record['versions']['torch']}, "
        f"{state}{', ' if state else ''}{record['date']}{f'. {note}' if (note := record.get('note')) else ''}*"
    )


def section(results: Path, name: str, write: Callable[[dict[str, Any]], str]) -> str:
    """Write the section of an experiment from its result, and where that comes from; `NOT_RUN` where there is none."""
    path = results / f"{name}.json"
    if not path.is_file():
        return NOT_RUN
    record = read_result(path)
    return f"{write(record)}\n\n{caption(name, record)}"


def main(arguments: list[str] | None = None) -> None:
    """Fill the documents, or say which of them are not up to date."""
    parser = argparse.ArgumentParser(prog="python -m gspool.experiments.report", description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true", help="change nothing; fail if a document is out of date")
    parser.add_argument("--root", type=Path, default=Path(), help="folder of README.md, docs/ and results/ (here)")
    options = parser.parse_args(arguments)
    stale = []
    for document in documents(options.root):
        text = document.read_text(encoding="utf-8")
        try:
            new = filled(text, options.root / "results")
        except ValueError as wrong:
            raise ValueError(f"{document.relative_to(options.root).as_posix()} cannot be filled: {wrong}") from wrong
        if new != text:
            stale.append(document.relative_to(options.root).as_posix())
            if not options.check:
                document.write_text(new, encoding="utf-8")
    if stale and options.check:
        raise SystemExit(f"out of date: {', '.join(stale)}; run python -m gspool.experiments.report")
    print(f"filled anew: {', '.join(stale)}" if stale else "every document is up to date")


if __name__ == "__main__":
    main()
