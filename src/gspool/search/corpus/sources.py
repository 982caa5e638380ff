"""List the images of a corpus: folders, globs, CSV lists and single files, one after the other."""

from __future__ import annotations

import glob
import os
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from gspool.data.class_folders import ImageFolder, LeftOut
from gspool.data.csv_list import Picture, read_csv
from gspool.data.decode import IMAGE_SUFFIXES, printable

Kind = Literal["folder", "glob", "list", "file"]
# What gspool embed writes, perhaps into the folder itself: vectors, unfinished work, the list of bad pictures.
WRITTEN = (".lance", ".parquet", ".npz", ".parts", ".csv")


class Listed(NamedTuple):
    """One image of a corpus: its absolute path, and its label where known."""

    path: str
    label: str | None = None


def list_images(sources: Sequence[str | Path], warn: bool = True) -> Iterator[Listed]:
    """Yield the images of folders, globs, CSV lists and files, always in the same order.

    Folders are walked as in training, see `gspool.data.class_folders.ImageFolder`: pictures are files ending in .jpg,
    .jpeg, .png or .webp, labelled by the first folder below the source (the second, below train, validation and test).
    A CSV list has a column path (absolute, or relative to the list) and optionally a column label. Globs and single
    files have no label.

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
        found, skipped = False, LeftOut()
        for image in _list_one(source, skipped):
            found = True
            yield image
        if not found:
            raise ValueError(f"{source} holds no pictures; they end in {', '.join(IMAGE_SUFFIXES)}")
        if skipped.count and warn:
            files = "1 file is" if skipped.count == 1 else f"{skipped.count:,} files are"
            warnings.warn(
                f"{printable(source)}: {files} left out by name ({skipped}); pictures end in "
                f"{', '.join(IMAGE_SUFFIXES)}. Name other files in a CSV list to read them",
                stacklevel=2,
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


def _list_one(source: str | Path, skipped: LeftOut) -> Iterator[Listed]:
    path, kind = Path(source).expanduser(), kind_of(source)
    if kind == "folder":
        folder = ImageFolder(os.path.abspath(path), ignored=WRITTEN)
        yield from _listed(folder)
        skipped.count, skipped.first = folder.other_files.count, folder.other_files.first
    elif kind == "list":
        yield from _listed(read_csv(path, needs_labels=False))
    elif kind == "file":
        yield Listed(os.path.abspath(path))
    else:
        # Sorted: the order of a folder's entries differs between file systems.
        for name in sorted(glob.iglob(str(path), recursive=True)):
            if os.path.isdir(name):
                continue
            if name.lower().endswith(IMAGE_SUFFIXES):
                yield Listed(os.path.abspath(name))
            else:
                skipped.add(os.path.basename(name))


def _listed(pictures: Iterable[Picture]) -> Iterator[Listed]:
    for picture in pictures:
        yield Listed(os.path.abspath(picture.path), picture.label or None)


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
