"""A CSV list of pictures: columns path and label, and where wanted split and role."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from gspool.data.image_set import GALLERY, QUERY, Split

COLUMNS = ("path", "label", "split", "role")
_SPLIT_WORDS: dict[str, Split] = {"train": "train", "val": "validation", "validation": "validation", "test": "test"}


class Picture(NamedTuple):
    """One image of a user: where it is, what it shows, and, where the data says so, its split and role."""

    path: Path
    label: str
    split: Split | None = None
    role: str | None = None


class Listing(NamedTuple):
    """The images of a user, and the names of the classes, those without an image included."""

    pictures: list[Picture]
    class_names: list[str]


def read_csv(path: Path) -> Listing:
    """Read a list of pictures; paths are absolute or relative to the folder of the list.

    The first line names the columns. ``split`` is train, validation (or val) or test; query and gallery are the test
    split with that role. ``role`` is query, gallery or empty. Other columns are left alone.

    Raises:
        ValueError: if a column or a label is missing, or a word is not known; the message gives the lines.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = (Path(folder) / "list.csv").write_text("path,label,split\\na.jpg,ant,train\\nb.jpg,bee,query\\n")
        ...     pictures, class_names = read_csv(Path(folder) / "list.csv")
        >>> [(picture.path.name, picture.split, picture.role) for picture in pictures], class_names
        ([('a.jpg', 'train', None), ('b.jpg', 'test', 'query')], ['ant', 'bee'])
    """
    # utf-8-sig: spreadsheets put a byte-order mark before the name of the first column.
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file)
        columns = [name.strip() for name in reader.fieldnames or ()]
        reader.fieldnames = columns
        missing = [name for name in COLUMNS[:2] if name not in columns]
        if missing:
            raise ValueError(f"{path} has no column {' and '.join(missing)}; its first line names {columns}")
        rows = [(reader.line_num, {name: (row.get(name) or "").strip() for name in COLUMNS}) for row in reader]
    if not rows:
        raise ValueError(f"{path} lists no pictures: it has a header and nothing below it")
    for name in COLUMNS[:2]:
        _stop_at(path, [line for line, row in rows if not row[name]], f"no {name}; give every picture one")
    splits = {**_SPLIT_WORDS, QUERY: "test", GALLERY: "test"}
    _stop_at(
        path,
        [line for line, row in rows if row["split"].lower() not in {"", *splits}],
        f"a split that is none of {', '.join(splits)}",
    )
    given = [bool(row["split"]) for _, row in rows]
    if any(given):
        _stop_at(path, [line for line, row in rows if not row["split"]], "no split, while others have one")
    _stop_at(
        path,
        [line for line, row in rows if row["role"].lower() not in ("", QUERY, GALLERY)],
        f"a role that is neither {QUERY} nor {GALLERY}",
    )
    pictures = [
        Picture(
            path.parent / row["path"],
            row["label"],
            splits.get(row["split"].lower()),
            row["role"].lower() or (row["split"].lower() if row["split"].lower() in (QUERY, GALLERY) else None),
        )
        for _, row in rows
    ]
    return Listing(pictures, sorted({picture.label for picture in pictures}))


def _stop_at(path: Path, lines: Sequence[int], problem: str) -> None:
    """Refuse a list for what some of its lines say.

    Raises:
        ValueError: if there are such lines.
    """
    if lines:
        shown = ", ".join(map(str, lines[:5])) + (", ..." if len(lines) > 5 else "")
        raise ValueError(f"{path}: {len(lines)} of its lines (line {shown}) have {problem}")
