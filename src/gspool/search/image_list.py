"""Which images make a corpus: folders, globs, CSV lists and single files, one after the other."""

from __future__ import annotations

import csv
import glob
import os
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from gspool.data.class_folders import SPLIT_FOLDERS
from gspool.data.decode import IMAGE_SUFFIXES

PATH, LABEL = "path", "label"
Kind = Literal["folder", "glob", "list", "file"]

# What gspool embed writes, perhaps into the folder itself: vectors, their parts, and the list of bad pictures.
WRITTEN = (".lance", ".parquet", ".npz", ".parts", ".csv")


class Listed(NamedTuple):
    """One image of a corpus: its absolute path, and its label where that is known."""

    path: str
    label: str | None = None


def list_images(sources: Sequence[str | Path], warn: bool = True) -> Iterator[Listed]:
    """Give the images of folders, globs, CSV lists and files, in an order that is the same every time.

    A folder is walked through, hidden files left out; pictures are told by the ends of their names (.jpg .jpeg .png
    .webp) and labelled by the first folder below it (the second, below train, validation and test). As in training,
    the folder of a class may be a link, and links further down are not followed. A CSV list has a column path and may
    have a column label; its paths are absolute or relative to the list. What a glob finds, and files named one by one,
    have no label.

    Args:
        sources: the folders, globs, lists and files.
        warn: say what is left out; once is enough for who lists the same twice.

    Raises:
        FileNotFoundError: if there is nothing of that name.
        ValueError: if a folder or a glob holds no picture, or a CSV list has no column path or a line without one.

    Warns:
        UserWarning: if files of a folder or a glob are left out because of their names.

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
        found, others = False, LeftOut()
        for image in _list_one(source, others):
            found = True
            yield image
        if not found:
            raise ValueError(f"{source} holds no pictures; they end in {', '.join(IMAGE_SUFFIXES)}")
        if others.count and warn:
            warnings.warn(f"{source}: {others}", stacklevel=2)


class LeftOut:
    """Files that are no pictures by their names: how many, and the first of them."""

    SHOWN = 3

    def __init__(self) -> None:
        self.count = 0
        self.first: list[str] = []

    def add(self, path: str) -> None:
        """Count a file."""
        self.count += 1
        if len(self.first) < self.SHOWN:
            self.first.append(os.path.basename(path))

    def __str__(self) -> str:
        names = ", ".join([*self.first, *(["..."] if self.count > self.SHOWN else [])])
        files = "1 file is" if self.count == 1 else f"{self.count:,} files are"
        return (
            f"{files} left out by name ({names}); pictures end in {', '.join(IMAGE_SUFFIXES)}. Others that can be read "
            "are taken where a CSV list names them"
        )


def _list_one(source: str | Path, others: LeftOut) -> Iterator[Listed]:
    path, kind = Path(source).expanduser(), kind_of(source)
    if kind == "folder":
        yield from _in_folder(path, others)
    elif kind == "list":
        yield from _in_csv(path)
    elif kind == "file":
        yield Listed(os.path.abspath(path))
    else:
        # Sorted, because the order of a folder's entries differs from one file system to the next.
        for name in sorted(glob.iglob(str(path), recursive=True)):
            if os.path.isdir(name):
                continue
            if name.lower().endswith(IMAGE_SUFFIXES):
                yield Listed(os.path.abspath(name))
            else:
                others.add(name)


def kind_of(source: str | Path) -> Kind:
    """Say what a source is, by what is there.

    Raises:
        FileNotFoundError: if there is nothing of that name, and it is no glob.
    """
    path = Path(source).expanduser()
    if path.is_dir():
        return "folder"
    if path.suffix.lower() == ".csv" and path.is_file():
        return "list"
    if path.exists():
        return "file"
    if glob.has_magic(str(source)):
        return "glob"
    raise FileNotFoundError(f"there is no {source}; give a folder, a glob in quotes, a CSV list or an image")


def _in_folder(root: Path, others: LeftOut) -> Iterator[Listed]:
    """Walk through a folder, one folder's names in memory at a time."""
    top = [entry.name for entry in os.scandir(root) if entry.is_dir() and _may_hold_pictures(entry.name)]
    # As in training: nothing but split folders means that classes are one level further down.
    depth = 1 if "train" in top and all(name in SPLIT_FOLDERS for name in top) else 0
    for folder, folders, files in os.walk(os.path.abspath(root), followlinks=True):
        parts = Path(os.path.relpath(folder, os.path.abspath(root))).parts
        # A link below a class may lead back to where it lies, and round for ever.
        may_be_link = len(parts) <= depth
        folders[:] = sorted(
            name
            for name in folders
            if _may_hold_pictures(name) and (may_be_link or not os.path.islink(os.path.join(folder, name)))
        )
        label = parts[depth] if len(parts) > depth else None
        for name in sorted(files):
            if not _may_hold_pictures(name):
                continue
            if name.lower().endswith(IMAGE_SUFFIXES):
                yield Listed(os.path.join(folder, name), label)
            else:
                others.add(name)


def _may_hold_pictures(name: str) -> bool:
    return not name.startswith(".") and not name.endswith(WRITTEN)


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
