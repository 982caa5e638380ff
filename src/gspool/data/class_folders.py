"""Walk through a folder of images whose sub-folders are classes, perhaps below folders named after splits."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from gspool.data.csv_list import SPLIT_NAMES, Picture
from gspool.data.decode import IMAGE_SUFFIXES, printable


class LeftOut:
    """Things that a walk left out: how many, and the names of the first."""

    SHOWN = 3

    def __init__(self) -> None:
        self.count = 0
        self.first: list[str] = []

    def add(self, path: str) -> None:
        """Count one."""
        self.count += 1
        if len(self.first) < self.SHOWN:
            self.first.append(printable(path))

    def __str__(self) -> str:
        return ", ".join([*self.first, *(["..."] if self.count > self.SHOWN else [])])


class ImageFolder:
    """The images below a folder, in an order that is the same on every machine.

    Iterating yields one `Picture` a file that ends in .jpg, .jpeg, .png or .webp, in any case. Its label is the name of
    the first folder below the root, empty for a file in the root itself. Where all folders below the root are named
    train, val, validation or test and hold folders, they are splits, and labels are one level further down. Hidden
    files and folders are ignored. A class folder may be a link; links further down are not followed, and no folder is
    listed twice.

    Args:
        root: the folder.
        ignored: endings of names that are skipped without being counted, such as those of an index beside the images.

    Attributes:
        class_names: the class folders that have been met, also those without an image.
        other_files: files that were left out because of their names.
        other_folders: folders that were left out: links to a folder listed before, links below a class, and those that
            may not be read.

    Raises:
        FileNotFoundError: if there is no such folder.
        ValueError: if it is not a folder.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as root:
        ...     for name in ("ant/1.jpg", "bee/1.PNG", "bee/notes.txt"):
        ...         (Path(root) / name).parent.mkdir(exist_ok=True)
        ...         (Path(root) / name).touch()
        ...     folder = ImageFolder(root)
        ...     [(picture.path.name, picture.label) for picture in folder], str(folder.other_files)
        ([('1.jpg', 'ant'), ('1.PNG', 'bee')], 'bee/notes.txt')
    """

    def __init__(self, root: str | os.PathLike[str], ignored: tuple[str, ...] = ()) -> None:
        self.root = os.fspath(root)
        self.ignored = ignored
        if not os.path.exists(root):
            raise FileNotFoundError(f"{printable(root)} does not exist; give a folder of class sub-folders, or a CSV")
        if not os.path.isdir(root):
            raise ValueError(f"{printable(root)} is not a folder and not a regular file; give one of these")
        top = [entry for entry in self._entries(self.root) if _is_folder(entry)]
        self.has_folders = bool(top)
        self.has_splits = all(entry.name in SPLIT_NAMES for entry in top) and any(
            _is_folder(below) for entry in top for below in self._entries(entry.path)
        )
        self._reset()

    def _reset(self) -> None:
        self.class_names: dict[str, None] = {}
        self.other_files, self.other_folders = LeftOut(), LeftOut()

    def __iter__(self) -> Iterator[Picture]:
        self._reset()
        visited = {_identity(self.root)}
        label_depth = 1 if self.has_splits else 0
        # A stack and not recursion: folders may be nested deeper than Python's calls.
        stack: list[tuple[Iterator[os.DirEntry[str]], tuple[str, ...]]] = [(iter(self._entries(self.root)), ())]
        while stack:
            entries, names = stack[-1]
            entry = next(entries, None)
            if entry is None:
                stack.pop()
                continue
            if _is_folder(entry):
                if len(names) == label_depth:
                    self.class_names[entry.name] = None
                below = None
                if len(names) <= label_depth or not entry.is_symlink():
                    below = self._enter(entry.path, visited)
                if below is None:
                    self.other_folders.add(os.path.relpath(entry.path, self.root))
                else:
                    stack.append((iter(below), (*names, entry.name)))
            elif entry.name.lower().endswith(IMAGE_SUFFIXES):
                label = names[label_depth] if len(names) > label_depth else ""
                split = SPLIT_NAMES[names[0]] if self.has_splits and names else None
                yield Picture(Path(entry.path), label, split)
            else:
                self.other_files.add(os.path.relpath(entry.path, self.root))

    def _enter(self, folder: str, visited: set[tuple[int, int]]) -> list[os.DirEntry[str]] | None:
        """Return what is in a folder, or None if it was visited before or may not be read."""
        own = _identity(folder)
        if own in visited:
            return None
        visited.add(own)
        try:
            return self._entries(folder)
        except PermissionError:
            return None

    def _entries(self, folder: str) -> list[os.DirEntry[str]]:
        with os.scandir(folder) as entries:
            visible = [e for e in entries if not e.name.startswith(".") and not e.name.endswith(self.ignored)]
        return sorted(visible, key=lambda entry: entry.name)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    # For links by os.path: a DirEntry raises where a link leads round in a circle.
    return os.path.isdir(entry.path) if entry.is_symlink() else entry.is_dir()


def _identity(folder: str) -> tuple[int, int]:
    state = os.stat(folder)
    return state.st_dev, state.st_ino
