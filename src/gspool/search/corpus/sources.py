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
from gspool.search.index.rows import ImageRecord

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
        UserWarning: unless ``warn`` is false, if files of a folder or a glob are left out because of their names, or
            the innermost of nested folders are the labels.

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
        if source.nesting and warn:
            warnings.warn(f"{printable(given)}: {source.nesting}", stacklevel=2)


class Source:
    """One folder, glob, CSV list or file, known by its absolute name; a file named by itself has none.

    Attributes:
        left_out: files that were left out because of their names, once all images have been listed.
        nesting: a sentence if the innermost of nested folders are the labels.

    Raises:
        FileNotFoundError: if nothing has that name and it is not a glob.
    """

    def __init__(self, given: str | Path) -> None:
        path = self.path = Path(given).expanduser()
        self.place = os.path.abspath(path)
        self.left_out = LeftOut()
        self.nesting = ""
        if path.is_dir():
            self.kind = "folder"
        elif path.suffix.lower() == ".csv" and path.is_file():
            self.kind = "list"
        elif path.exists():
            self.kind = "file"
        elif glob.has_magic(str(given)):
            self.kind = "glob"
        else:
            raise FileNotFoundError(f"there is no {given}; give a folder, a glob in quotes, a CSV list or an image")
        self.name = None if self.kind == "file" else printable(self.place)

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
        else:
            folder = ImageFolder(self.place, ignored=WRITTEN) if self.kind == "folder" else None
            for picture in read_csv(self.path, needs_labels=False) if folder is None else folder:
                yield ImageRecord(os.path.abspath(picture.path), picture.label or None, source=self.name)
            if folder is not None:
                self.left_out = folder.other_files
                self.nesting = folder.nesting() if folder.label_folder == "leaf" else ""

    @property
    def searched(self) -> str:
        """The folder in which this source finds pictures; empty for a list, which may name any."""
        if self.kind == "list":
            return ""
        fixed = re.split(r"[*?\[]", self.place, maxsplit=1)[0] if self.kind == "glob" else self.place
        return os.path.join(fixed if self.kind == "folder" else os.path.dirname(fixed), "")


class Sources:
    """The sources of a corpus, which know what was removed from them."""

    def __init__(self, given: Sequence[str | Path]) -> None:
        self.given = given
        sources = [Source(each) for each in given]
        self._names = {source.name for source in sources if source.name is not None}
        self._lists = {source.name for source in sources if source.kind == "list"}
        # Whatever is missing below a folder was removed from it; the others only know where they look.
        self._folders = tuple({source.searched for source in sources if source.kind == "folder"})
        self._searched = tuple({source.searched for source in sources})

    def __iter__(self) -> Iterator[ImageRecord]:
        return list_images(self.given, warn=False)

    def have_lost(self, path: str, source: str | None) -> bool:
        """Return whether a picture that is no longer listed was removed from these sources.

        A picture from a list was removed when the list no longer names it. Any other was removed when its file is gone,
        if it came from one of these sources or lies below one of these folders. Without a known source it is enough
        that these sources look where it was.
        """
        if source in self._lists:
            return True
        if source is None:
            return path.startswith(self._searched) and is_missing(path)
        return (source in self._names or path.startswith(self._folders)) and is_missing(path)


def is_missing(path: str) -> bool:
    """Return whether there is no such file; one that cannot be reached, on a failing disk say, is not missing."""
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except (OSError, ValueError):
        return False
    return False
