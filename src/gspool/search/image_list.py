"""Which images make a corpus: folders, globs, CSV lists and single files, one after the other."""

from __future__ import annotations

import csv
import glob
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from gspool.data.class_folders import SPLIT_FOLDERS
from gspool.data.decode import IMAGE_SUFFIXES

PATH, LABEL = "path", "label"


class Listed(NamedTuple):
    """One image of a corpus: its absolute path, and its label where that is known."""

    path: str
    label: str | None = None


def list_images(sources: Sequence[str | Path]) -> Iterator[Listed]:
    """Give the images of folders, globs, CSV lists and files, in an order that is the same every time.

    A folder is walked through, hidden files left out; pictures are told by the ends of their names (.jpg .jpeg .png
    .webp) and labelled by the first folder below it (the second, below train, validation and test). A CSV list has a
    column path and may have a column label; its paths are absolute or relative to the list. What a glob finds, and
    files named one by one, have no label.

    Raises:
        FileNotFoundError: if there is nothing of that name.
        ValueError: if a folder or a glob holds no picture, or a CSV list has no column path or a line without one.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     (Path(folder) / "ant").mkdir()
        ...     (Path(folder) / "ant" / "1.jpg").touch()
        ...     [(Path(image.path).name, image.label) for image in list_images([folder])]
        [('1.jpg', 'ant')]
    """
    if not sources:
        raise ValueError("no images were named; give folders, globs, CSV lists or files")
    for source in sources:
        found = False
        for image in _list_one(source):
            found = True
            yield image
        if not found:
            raise ValueError(f"{source} holds no pictures; they end in {', '.join(IMAGE_SUFFIXES)}")


def _list_one(source: str | Path) -> Iterator[Listed]:
    path = Path(source).expanduser()
    if path.is_dir():
        yield from _in_folder(path)
    elif path.suffix.lower() == ".csv" and path.is_file():
        yield from _in_csv(path)
    elif path.exists():
        yield Listed(os.path.abspath(path))
    elif glob.has_magic(str(source)):
        # Sorted, because the order of a folder's entries differs from one file system to the next.
        for name in sorted(glob.iglob(str(path), recursive=True)):
            if os.path.isdir(name):
                continue
            if name.lower().endswith(IMAGE_SUFFIXES):
                yield Listed(os.path.abspath(name))
    else:
        raise FileNotFoundError(f"there is no {source}; give a folder, a glob in quotes, a CSV list or an image")


def _in_folder(root: Path) -> Iterator[Listed]:
    """Walk through a folder, one folder's names in memory at a time."""
    top = [entry.name for entry in os.scandir(root) if entry.is_dir() and not entry.name.startswith(".")]
    # As in training: nothing but split folders means that classes are one level further down.
    depth = 1 if "train" in top and all(name in SPLIT_FOLDERS for name in top) else 0
    for folder, folders, files in os.walk(os.path.abspath(root)):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        parts = Path(os.path.relpath(folder, os.path.abspath(root))).parts
        label = parts[depth] if len(parts) > depth else None
        for name in sorted(files):
            if not name.startswith(".") and name.lower().endswith(IMAGE_SUFFIXES):
                yield Listed(os.path.join(folder, name), label)


def _in_csv(path: Path) -> Iterator[Listed]:
    """Read a list line by line."""
    # utf-8-sig: spreadsheets put a byte-order mark before the name of the first column.
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file)
        columns = [name.strip() for name in reader.fieldnames or ()]
        if PATH not in columns:
            raise ValueError(f"{path} has no column {PATH}; its first line names {columns}")
        reader.fieldnames = columns
        for row in reader:
            name = (row.get(PATH) or "").strip()
            if not name:
                raise ValueError(f"{path}, line {reader.line_num}: no {PATH}; give every picture one")
            label = (row.get(LABEL) or "").strip() or None
            yield Listed(os.path.abspath(path.parent / Path(name).expanduser()), label)
