"""List the images of a corpus: folders, globs, CSV lists and single files, one after the other."""

from __future__ import annotations

import glob
import os
import re
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

from gspool.data.class_folders import ImageFolder, LeftOut
from gspool.data.csv_list import read_csv
from gspool.data.decode import IMAGE_SUFFIXES, printable
from gspool.search.index.table import ImageRecord

# What gspool embed writes, perhaps into the folder itself: vectors, unfinished work, the list of bad pictures.
WRITTEN = (".lance", ".parquet", ".npz", ".parts", ".csv")


def list_images(sources: Sequence[str | Path], warn: bool = True) -> Iterator[ImageRecord]:
    """Yield the images of folders, globs, CSV lists and files, always in the same order.

    Folders are walked as in training, see `gspool.data.class_folders.ImageFolder`: pictures are files ending in one
    of `IMAGE_SUFFIXES`, labelled by their class folder below the source (below train, validation and test, if there).
    A CSV list has a column path (absolute, or relative to the list) and optionally a column label. Globs and single
    files have no label.

    Raises:
        FileNotFoundError: if a source does not exist.
        ValueError: if a folder or a glob holds no picture, or a CSV list cannot be read.

    Warns:
        UserWarning: unless ``warn`` is false, if files of a folder or a glob are left out because of their names,
            folders are left out, or the innermost of nested folders are the labels.
    """
    if not sources:
        raise ValueError("no images were named; give folders, globs, CSV lists or files")
    for given in sources:
        source, empty = Source(given), True
        for record in source:
            empty = False
            yield record
        if empty:
            raise ValueError(f"{given} holds no pictures; they end in {', '.join(IMAGE_SUFFIXES)}")
        if source.left_out.count and warn:
            files = "1 file is" if source.left_out.count == 1 else f"{source.left_out.count:,} files are"
            warnings.warn(
                f"{printable(given)}: {files} left out by name ({source.left_out}); pictures end in "
                f"{', '.join(IMAGE_SUFFIXES)}. Name other files in a CSV list to read them",
                stacklevel=2,
            )
        if source.folders.count and warn:
            folders = "1 folder is" if source.folders.count == 1 else f"{source.folders.count:,} folders are"
            warnings.warn(
                f"{printable(given)}: {folders} left out ({source.folders}): links to a folder listed already, links "
                "below a class folder, links that lead nowhere, or folders that may not be read",
                stacklevel=2,
            )
        if source.nesting and warn:
            warnings.warn(f"{printable(given)}: {source.nesting}", stacklevel=2)


class Source:
    """One folder, glob, CSV list or file.

    Attributes:
        name: its absolute path, by which rows of the table know it; None for a file named by itself.
        searched: the folder in which it finds pictures; empty for a list, which may name any.
        left_out: files that were left out because of their names, once all images have been listed.
        folders: folders that were left out, see `ImageFolder`.
        nesting: a sentence if the innermost of nested folders are the labels.
    """

    def __init__(self, given: str | Path) -> None:
        path = self.path = Path(given).expanduser()
        self.place = place = os.path.abspath(path)
        self.left_out, self.folders, self.nesting = LeftOut(), LeftOut(), ""
        if path.is_dir():
            self.kind, searched = "folder", place
        elif path.suffix.lower() == ".csv" and path.is_file():
            self.kind, searched = "list", None
        elif path.exists():
            self.kind, searched = "file", os.path.dirname(place)
        elif glob.has_magic(str(given)):
            self.kind, searched = "glob", os.path.dirname(re.split(r"[*?\[]", place, maxsplit=1)[0])
        else:
            raise FileNotFoundError(f"there is no {given}; give a folder, a glob in quotes, a CSV list or an image")
        self.searched = "" if searched is None else os.path.join(searched, "")
        self.name = None if self.kind == "file" else printable(place)

    def __iter__(self) -> Iterator[ImageRecord]:
        if self.kind == "file":
            yield ImageRecord(self.place)
        elif self.kind == "glob":
            # Sorted: the order of a folder's entries differs between file systems.
            for path in sorted(glob.iglob(str(self.path), recursive=True)):
                if os.path.isdir(path):
                    continue
                if path.lower().endswith(IMAGE_SUFFIXES):
                    yield ImageRecord(os.path.abspath(path), source=self.name)
                else:
                    self.left_out.add(os.path.basename(path))
        elif self.kind == "list":
            for picture in read_csv(self.path, needs_labels=False):
                yield ImageRecord(os.path.abspath(picture.path), picture.label or None, source=self.name)
        else:
            folder = ImageFolder(self.place, ignored=WRITTEN)
            for picture in folder:
                yield ImageRecord(str(picture.path), picture.label or None, source=self.name)
            self.left_out, self.folders = folder.other_files, folder.other_folders
            self.nesting = folder.nesting() if folder.label_folder == "leaf" else ""
