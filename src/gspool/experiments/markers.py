"""Fill the documents: what stands between two markers comes from a file in results/.

A results marker names the file, the path to the value in it, the format of numbers, and the columns of a table:

    <!-- results:toy value -->                                  the rows under "value" of results/toy.json, as a table
    <!-- /results -->
    <!-- results:cpu value .1f tokens,milliseconds.gsp -->      two columns, the second out of a dictionary
    <!-- /results -->
    off by <!-- results:solver value.worst .1e -->?<!-- /results -->    one number in the middle of a sentence

A table marker names an experiment and one of its tables (`Experiment.tables`), or its provenance; one line of text goes
into a sentence, and so does a cell, named by the first cells of its row and the heading of its column. ``summary`` is
the table of the main figures of all experiments:

    <!-- table: toy.weights -->
    <!-- end -->
    a gain of <!-- table: benchmark.gains :: c2 :: paper -->?<!-- end --> points
    <!-- table: collage.gain :: frozen; PNCA :: paper -->?<!-- end -->
    <!-- table: toy.provenance --><!-- end -->
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gspool.experiments import registry
from gspool.experiments.tables import cell, headline_table, markdown_table, provenance, read_table
from gspool.provenance import read_measured

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_CODE = re.compile(r"^(```|~~~).*?^\1", re.DOTALL | re.MULTILINE)
_RESULTS = ("<!-- results:", "<!-- /results -->")
_TABLES = ("<!-- table:", "<!-- end -->")


def documents(root: Path) -> list[Path]:
    """List what may hold results: README.md and the pages under docs/."""
    return [path for path in (root / "README.md", *sorted(root.glob("docs/**/*.md"))) if path.is_file()]


def fill_documents(root: Path, check: bool = False) -> list[str]:
    """Fill README.md and docs/*.md from results/, and return the names of those that changed.

    Raises:
        ValueError: if there are no results, one is of a tiny version, a marker is wrong, or, with ``check``, a document
            is out of date.
    """
    results = root / "results"
    if not results.is_dir():
        raise ValueError(f"there is no folder {results}; run this where README.md, docs/ and results/ are")
    for path in sorted(results.glob("*.json")):
        read_measured(path)
    stale: dict[str, tuple[Path, str]] = {}
    for document in documents(root):
        name = document.relative_to(root).as_posix()
        text = document.read_text(encoding="utf-8")
        try:
            new = filled(text, results)
        except ValueError as wrong:
            raise ValueError(f"{name} cannot be filled: {wrong}") from wrong
        if new != text:
            stale[name] = (document, new)
    if check and stale:
        raise ValueError(f"out of date: {', '.join(stale)}; run gspool report")
    for document, new in stale.values():
        document.write_text(new, encoding="utf-8")
    return [*stale]


def filled(text: str, results: Path) -> str:
    """Write the measured values between the markers of a text; code blocks are left alone."""
    parts, end = [], 0
    for code in _CODE.finditer(text):
        parts += [_filled_prose(text[end : code.start()], results), code.group()]
        end = code.end()
    return "".join([*parts, _filled_prose(text[end:], results)])


def _filled_prose(text: str, results: Path) -> str:
    for (begin, end), write in ((_RESULTS, _result), (_TABLES, _table)):
        text = _replaced(text, begin, end, write, results)
    return text


def _replaced(text: str, begin: str, end: str, write: Callable[[str, Path], str], results: Path) -> str:
    opened = re.compile(re.escape(begin) + r"(?P<marker>[^>]*?) -->")
    whole = re.compile(opened.pattern + rf"(?:(?!{re.escape(begin)}).)*?" + re.escape(end), re.DOTALL)
    closed = len(whole.findall(text))
    if len(opened.findall(text)) != closed or text.count(end) != closed:
        raise ValueError(f"{len(opened.findall(text))} markers {begin} are opened and {closed} of them closed by {end}")

    def fill(found: re.Match[str]) -> str:
        return f"{begin}{found['marker']} -->{write(found['marker'].strip(), results)}{end}"

    return whole.sub(fill, text)


def _table(marker: str, results: Path) -> str:
    if marker == "summary":
        return _block(headline_table(results))
    whole, *place = (word.strip() for word in marker.split("::"))
    name, _, part = whole.partition(".")
    experiment = registry.find(name)
    if part == "provenance":
        files = [file for file in experiment.files if (results / f"{file}.json").is_file()]
        return _block("\n\n".join(provenance(file, read_measured(results / f"{file}.json")) for file in files))
    if part not in experiment.tables:
        raise ValueError(f"{name} has no table {part!r}; it has {', '.join([*experiment.tables, 'provenance'])}")
    source = experiment.source(experiment.tables[part])
    text = source.make(read_measured(results / f"{source.file}.json"))
    return table_cell(text, *place) if place else _block(text)


def table_cell(table: str, row: str, column: str = "") -> str:
    """Return a cell of a Markdown table by the first cells of its row, with ``;`` between, and its column's heading.

    Example:
        >>> table_cell("| loss | layer | x |\\n|---|---|---:|\\n| c2 | gap | 1 |\\n| c2 | gsp | 2 |", "c2; gsp", "x")
        '2'
    """
    rows, first = read_table(table), [word.strip() for word in row.split(";")]
    found = [cells for cells in rows if [*cells.values()][: len(first)] == first]
    if len(found) != 1 or column not in found[0]:
        known = "; ".join(", ".join([*cells.values()][: len(first)]) for cells in rows)
        columns = ", ".join(rows[0]) if rows else ""
        raise ValueError(f"{len(found)} rows begin with {row!r}; rows: {known}; columns: {columns}")
    return found[0][column].strip("*")


def _block(text: str) -> str:
    # Between blank lines, Markdown takes it for a block; one line stays in its sentence.
    return f"\n\n{text}\n\n" if "\n" in text else text


def _result(marker: str, results: Path) -> str:
    words = marker.split()
    if not 1 <= len(words) <= 4:
        raise ValueError(f"a marker reads results:FILE [PATH [FORMAT [COLUMN,COLUMN...]]], got {marker!r}")
    name, path, style, columns = words + ["", "value", "g", ""][len(words) :]
    record = read_measured(results / f"{name}.json")
    value = found_value(record, path, name)
    if not isinstance(value, list):
        return cell(value, style)
    rows = [chosen(row, columns.split(","), name) for row in value] if columns else value
    return f"\n{markdown_table(rows, style, text_columns=0)}\n\n{provenance(name, record)}\n"


def found_value(record: Any, path: str, name: str) -> Any:
    """Follow a path such as ``value.worst.float32`` or ``value.0.mu`` into a result."""
    value = record
    for step in path.split("."):
        inside = {str(i): each for i, each in enumerate(value)} if isinstance(value, list) else value
        if not isinstance(inside, dict) or step not in inside:
            there = ", ".join(inside) if isinstance(inside, dict) else "a single value"
            raise ValueError(f"results/{name}.json has no {path!r}: instead of {step!r} there is {there}")
        value = inside[step]
    return value


def chosen(row: Any, columns: Sequence[str], name: str) -> dict[str, Any]:
    """Pick columns of a row by their paths; a heading is the last part of its path, with spaces."""
    return {column.rpartition(".")[2].replace("_", " "): found_value(row, column, name) for column in columns}
