"""List the images of a corpus: folders, globs, CSV lists and single files, one after the other."""

from __future__ import annotations

import csv
import glob
import os
import re
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from gspool.data.class_folders import SPLIT_FOLDERS
from gspool.data.decode import IMAGE_SUFFIXES
from gspool.search.images import printable

PATH, LABEL = "path", "label"
Kind = Literal["folder", "glob", "list", "file"]
# What gspool embed writes, perhaps into the folder itself: vectors, unfinished work, the list of bad pictures.
WRITTEN = (".lance", ".parquet", ".npz", ".parts", ".csv")
NAMES_SHOWN = 3


class Listed(NamedTuple):
    """One image of a corpus: its absolute path, and its label where known."""

    path: str
    label: str | None = None


def list_images(sources: Sequence[str | Path], warn: bool = True) -> Iterator[Listed]:
    """Yield the images of folders, globs, CSV lists and files, always in the same order.

    Folders are walked without hidden files; pictures are files ending in .jpg, .jpeg, .png or .webp, labelled by the
    first folder below the source (the second, below train, validation and test). The folder of a class may be a link,
    as in training; links further down, and links back into the walked folder, are not followed. A CSV list has a column
    path (absolute, or relative to the list) and optionally a column label. Globs and single files have no label.

    Args:
        sources: the folders, globs, lists and files.
        warn: warn about files that are left out.

    Raises:
        FileNotFoundError: if a source does not exist.
        ValueError: if a folder or a glob holds no picture, or a CSV list cannot be read.

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
        found, skipped = False, _Skipped()
        for image in _list_one(source, skipped):
            found = True
            yield image
        if not found:
            raise ValueError(f"{source} holds no pictures; they end in {', '.join(IMAGE_SUFFIXES)}")
        if skipped.count and warn:
            warnings.warn(f"{printable(source)}: {skipped}", stacklevel=2)


class _Skipped:
    """Files that are not pictures by their names: how many, and the first few."""

    def __init__(self) -> None:
        self.count, self.first = 0, list[str]()

    def append(self, name: str) -> None:
        self.count += 1
        if self.count <= NAMES_SHOWN:
            self.first.append(printable(name))

    def __str__(self) -> str:
        names = ", ".join(self.first) + (", ..." if self.count > NAMES_SHOWN else "")
        return (
            f"{self.count:,} {'file is' if self.count == 1 else 'files are'} left out by name ({names}); pictures end "
            f"in {', '.join(IMAGE_SUFFIXES)}. Name other files in a CSV list to read them"
        )


def kind_of(source: str | Path) -> Kind:
    """Return what a source is, by what exists.

    Raises:
        FileNotFoundError: if nothing has that name and it is not a glob.
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


def _list_one(source: str | Path, skipped: _Skipped) -> Iterator[Listed]:
    path, kind = Path(source).expanduser(), kind_of(source)
    if kind == "folder":
        yield from _in_folder(path, skipped)
    elif kind == "list":
        yield from _in_csv(path)
    elif kind == "file":
        yield Listed(os.path.abspath(path))
    else:
        # Sorted: the order of a folder's entries differs between file systems.
        for name in sorted(glob.iglob(str(path), recursive=True)):
            if name.lower().endswith(IMAGE_SUFFIXES) and not os.path.isdir(name):
                yield Listed(os.path.abspath(name))
            elif not os.path.isdir(name):
                skipped.append(os.path.basename(name))


def _in_folder(root: Path, skipped: _Skipped) -> Iterator[Listed]:
    """Walk a folder, with the names of one folder in memory at a time."""
    place, real = os.path.abspath(root), os.path.realpath(root)
    top = [entry.name for entry in os.scandir(root) if entry.is_dir() and _is_visible(entry.name)]
    # As in training: nothing but split folders means that classes are one level down.
    depth = 1 if "train" in top and all(name in SPLIT_FOLDERS for name in top) else 0
    for folder, folders, files in os.walk(place, followlinks=True):
        parts = Path(os.path.relpath(folder, place)).parts
        may_link = len(parts) <= depth
        folders[:] = sorted(
            name for name in folders if _is_visible(name) and _may_enter(os.path.join(folder, name), may_link, real)
        )
        label = parts[depth] if len(parts) > depth else None
        for name in sorted(filter(_is_visible, files)):
            if name.lower().endswith(IMAGE_SUFFIXES):
                yield Listed(os.path.join(folder, name), label)
            else:
                skipped.append(name)


def _may_enter(folder: str, may_link: bool, root: str) -> bool:
    """Return whether to walk into a folder: a link into the root, or above it, would list pictures twice."""
    if not os.path.islink(folder):
        return True
    target = os.path.realpath(folder)
    return may_link and os.path.commonpath([target, root]) not in (target, root)


def _is_visible(name: str) -> bool:
    return not name.startswith(".") and not name.endswith(WRITTEN)


def _in_csv(path: Path) -> Iterator[Listed]:
    """Read a list line by line."""
    # utf-8-sig: spreadsheets put a byte-order mark before the name of the first column.
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file)
        try:
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
        except UnicodeDecodeError as error:
            raise ValueError(f"{path} is not UTF-8 text ({error.reason}); save it as UTF-8") from error
        except csv.Error as error:
            raise ValueError(f"{path}, line {reader.line_num + 1}: {error}; check its quotes") from error


class Sources:
    """The sources of a corpus, each known by its absolute name; a file named by itself has none.

    Args:
        given: see `list_images`.
    """

    def __init__(self, given: Sequence[str | Path]) -> None:
        self.given = given
        self.names: list[str | None] = []
        self.lists: set[str] = set()
        # Whatever is missing below a folder was removed from it; the others only know where they look.
        self.folders: list[str] = []
        self.searched: list[str] = []
        for source in given:
            place, kind = os.path.abspath(Path(source).expanduser()), kind_of(source)
            self.names.append(None if kind == "file" else printable(place))
            if kind == "folder":
                self.folders.append(os.path.join(place, ""))
            elif kind == "list":
                self.lists.add(printable(place))
                self.searched.append("")
            else:
                fixed = place if kind == "file" else re.split(r"[*?\[]", place, maxsplit=1)[0]
                self.searched.append(os.path.join(os.path.dirname(fixed), ""))

    def pictures(self) -> Iterator[tuple[Listed, str | None]]:
        """Yield the pictures, each with the name of its source."""
        for source, name in zip(self.given, self.names, strict=True):
            for listed in list_images([source], warn=False):
                yield listed, name

    def have_lost(self, path: str, source: str | None) -> bool:
        """Return whether a picture that `pictures` did not yield was removed from these sources.

        A picture from a list was removed when the list no longer names it. Any other was removed when its file is gone,
        if it came from one of these sources or lies below one of these folders. Without a known source it is enough
        that these sources look where it was.
        """
        if source in self.lists:
            return True
        places = self.folders if source is not None else [*self.folders, *self.searched]
        mine = path.startswith(tuple(places)) or (source is not None and source in self.names)
        return mine and is_missing(path)


def is_missing(path: str) -> bool:
    """Return whether there is no such file; one that cannot be reached, on a failing disk say, is not missing."""
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except (OSError, ValueError):
        return False
    return False
