"""A CSV list of images: a column path, and where wanted label, split and role."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from gspool.data.image_set import GALLERY, QUERY, Split

PATH, LABEL, SPLIT, ROLE = COLUMNS = ("path", "label", "split", "role")
# What a split is called in folders and lists. Query and gallery, in lists, are the test split with that role.
SPLIT_NAMES: dict[str, Split] = {
    "train": "train",
    "val": "validation",
    "valid": "validation",
    "validation": "validation",
    "test": "test",
}
_LISTED_SPLITS: dict[str, Split] = {**SPLIT_NAMES, QUERY: "test", GALLERY: "test"}


class Picture(NamedTuple):
    """One listed image: its path, and where the data gives them its label (else empty), split and role."""

    path: Path
    label: str = ""
    split: Split | None = None
    role: str | None = None


def read_csv(path: Path, *, needs_labels: bool = True) -> Iterator[Picture]:
    """Read a list of images row by row; paths are absolute or relative to the folder of the list.

    The first line names the columns. ``split`` is train, validation (or val) or test; query and gallery are the test
    split with that role. ``role`` is query, gallery or empty. Other columns are ignored. The text is UTF-8, with or
    without a byte-order mark.

    Args:
        path: the list.
        needs_labels: refuse a list without a column label, and a row without a label.

    Raises:
        ValueError: at the first row that is wrong, with its line number.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = (Path(folder) / "list.csv").write_text("path,label,split\\na.jpg,ant,train\\nb.jpg,bee,query\\n")
        ...     [(row.path.name, row.label, row.split, row.role) for row in read_csv(Path(folder) / "list.csv")]
        [('a.jpg', 'ant', 'train', None), ('b.jpg', 'bee', 'test', 'query')]
    """
    needed = COLUMNS[: 2 if needs_labels else 1]
    has_splits: bool | None = None
    for line, row in _rows(path, needed):
        for name in needed:
            if not row[name]:
                raise ValueError(f"{path}, line {line}: no {name}; every image needs one")
        split, role = row[SPLIT].lower(), row[ROLE].lower()
        if split and split not in _LISTED_SPLITS:
            raise ValueError(f"{path}, line {line}: split {row[SPLIT]!r} is not one of {', '.join(_LISTED_SPLITS)}")
        if role not in ("", QUERY, GALLERY):
            raise ValueError(f"{path}, line {line}: role {row[ROLE]!r} is neither {QUERY} nor {GALLERY}")
        has_splits = bool(split) if has_splits is None else has_splits
        if bool(split) != has_splits:
            raise ValueError(f"{path}, line {line}: some rows have a split and some have none; give all or none")
        yield Picture(
            path.parent / (os.path.expanduser(row[PATH]) if row[PATH].startswith("~/") else row[PATH]),
            row[LABEL],
            _LISTED_SPLITS.get(split),
            role or (split if split in (QUERY, GALLERY) else None),
        )
    if has_splits is None:
        raise ValueError(f"{path} lists no images: there is nothing below its header")


def _rows(path: Path, needed: tuple[str, ...]) -> Iterator[tuple[int, dict[str, str]]]:
    """Read (line number, stripped values of the known columns) of every row."""
    reader = csv.DictReader(_lines(path))
    line = 0
    try:
        columns = [name.strip() for name in reader.fieldnames or ()]
        reader.fieldnames = columns
        missing = [name for name in needed if name not in columns]
        if missing:
            raise ValueError(f"{path} has no column {' and '.join(missing)}; its first line names {columns}")
        line = reader.line_num
        for row in reader:
            line = reader.line_num
            yield line, {name: (row.get(name) or "").strip() for name in COLUMNS}
    except csv.Error as problem:
        raise ValueError(
            f"{path}, line {line + 1}: not readable as CSV ({problem}); is a quotation mark not closed?"
        ) from problem


def _lines(path: Path) -> Iterator[str]:
    """Decode line by line, so that the message can name a line that is not UTF-8."""
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                # Spreadsheets put a byte-order mark before the name of the first column.
                yield line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as problem:
                raise ValueError(f"{path}, line {number}: this is not UTF-8; save the list as 'CSV UTF-8'") from problem
