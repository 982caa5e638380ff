"""Walk through a folder of images whose sub-folders are classes, perhaps below folders named after splits."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Literal

from gspool.data.csv_list import SPLIT_NAMES, Picture
from gspool.data.decode import IMAGE_SUFFIXES, printable

LabelFolder = Literal["leaf", "top"]


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

    Iterating yields one `Picture` a file that ends in one of `IMAGE_SUFFIXES`, in any case. Its label is the name of
    its class folder, empty for a file in the root itself. Folders named train, val, valid, validation or test that hold
    folders are splits if nothing else lies beside them or there are at least two of them; classes are below. Hidden
    files and folders are ignored. A class folder may be a link; links further down are not followed, and no folder is
    listed twice.

    Args:
        root: the folder.
        ignored: endings of names that are skipped without being counted, such as those of an index beside the images.
        label: which folder names the class if folders are nested: ``leaf``, the one that holds the picture (by its
            path, where several have its name), or ``top``, the first one. Unless given it is ``leaf`` if no first
            folder holds a picture itself and no two folders with pictures have the same name; else ``top``.

    Attributes:
        other_files: files that were left out because of their names.
        other_folders: folders that were left out: links to a folder listed before, links below a class, links that lead
            nowhere, and those that may not be read.

    Raises:
        FileNotFoundError: if there is no such folder.
        ValueError: if it is not a folder, or ``label`` is unknown.

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

    def __init__(
        self, root: str | os.PathLike[str], ignored: tuple[str, ...] = (), label: LabelFolder | None = None
    ) -> None:
        self.root = os.fspath(root)
        self.ignored = ignored
        self.label = label
        if label not in (None, "leaf", "top"):
            raise ValueError(f"label is 'leaf' or 'top', got {label!r}")
        if not os.path.exists(root):
            raise FileNotFoundError(f"{printable(root)} does not exist; give a folder of class sub-folders, or a CSV")
        if not os.path.isdir(root):
            raise ValueError(f"{printable(root)} is not a folder and not a regular file; give one of these")
        top = [entry for entry in self._entries(self.root) if _is_folder(entry)]
        splits = [entry for entry in top if entry.name.lower() in SPLIT_NAMES]
        self.has_folders = bool(top)
        self.has_splits = (
            len(splits) == len(top) or len({SPLIT_NAMES[entry.name.lower()] for entry in splits}) > 1
        ) and any(_is_folder(below) for entry in splits for below in self._entries(entry.path))
        self.other_files, self.other_folders = LeftOut(), LeftOut()
        self._folders: set[tuple[str, ...]] = set()

    def __iter__(self) -> Iterator[Picture]:
        # The first walk must end before the second begins: both count what they leave out.
        _ = self._holding
        for entry, names in self._files():
            if entry.name.lower().endswith(IMAGE_SUFFIXES):
                split = SPLIT_NAMES.get(names[0].lower()) if self.has_splits and names else None
                yield Picture(Path(entry.path), self._label(names[self.has_splits :]), split)
            else:
                self.other_files.add(os.path.relpath(entry.path, self.root))

    @cached_property
    def label_folder(self) -> LabelFolder:
        """Which folder is the class of a picture: as given, or chosen by the names of the folders."""
        has_leaves = len(self._holding) > len({names[0] for names in self._holding})
        are_classes = all(len(names) > 1 for names in self._holding) and len(self._leaf_names) == len(self._holding)
        return self.label or ("leaf" if has_leaves and are_classes else "top")

    def nesting(self) -> str:
        """Return one sentence on the chosen labels if folders are nested and no choice was given, else nothing."""
        top, leaf = len({names[0] for names in self._holding}), len(self._holding)
        if self.label is not None or top == leaf:
            return ""
        other = "top" if self.label_folder == "leaf" else "leaf"
        chosen = {"top": f"the first folder ({top} classes)", "leaf": f"the folder of the picture ({leaf} classes)"}
        return (
            f"class folders are nested: the label is {chosen[self.label_folder]}; label={other!r} takes "
            f"{chosen[other]} (in a run: --data.options.label {other})"
        )

    def empty_classes(self) -> list[str]:
        """Return the class folders without a picture."""
        if self.label_folder == "top":
            return sorted({names[0] for names in self._folders} - {names[0] for names in self._holding})
        parents = {names[:-1] for names in self._folders}
        return sorted(self._label(names) for names in self._folders - self._holding - parents)

    def _label(self, names: tuple[str, ...]) -> str:
        """Return the label of a picture in a folder, given by its names below the root or the split."""
        if self.label_folder == "top" or not names:
            return names[0] if names else ""
        # Folders of one name in several places are different classes.
        return names[-1] if self._leaf_names[names[-1]] <= 1 else "/".join(names)

    @cached_property
    def _leaf_names(self) -> Counter[str]:
        return Counter(names[-1] for names in self._holding)

    @cached_property
    def _holding(self) -> set[tuple[str, ...]]:
        """The folders below the root or the split that hold pictures, by a first walk through all of them."""
        return {
            names[self.has_splits :]
            for entry, names in self._files()
            if self._is_class(names) and entry.name.lower().endswith(IMAGE_SUFFIXES)
        }

    def _is_class(self, names: tuple[str, ...]) -> bool:
        """Check whether a folder is a class or below one: not the root, a split or a folder beside the splits."""
        return len(names) > self.has_splits and (not self.has_splits or names[0].lower() in SPLIT_NAMES)

    def _files(self) -> Iterator[tuple[os.DirEntry[str], tuple[str, ...]]]:
        """Yield every file with the names of its folders below the root."""
        self.other_files, self.other_folders, self._folders = LeftOut(), LeftOut(), set()
        visited = {_identity(self.root)}
        # A stack and not recursion: folders may be nested deeper than Python's calls.
        stack: list[tuple[Iterator[os.DirEntry[str]], tuple[str, ...]]] = [(iter(self._entries(self.root)), ())]
        while stack:
            entries, names = stack[-1]
            entry = next(entries, None)
            if entry is None:
                stack.pop()
            elif _is_folder(entry):
                below = None
                if len(names) <= self.has_splits or not entry.is_symlink():
                    below = self._enter(entry.path, visited)
                if below is None:
                    self.other_folders.add(os.path.relpath(entry.path, self.root))
                else:
                    stack.append((iter(below), (*names, entry.name)))
                # A class that is a link to a folder listed before is an empty class.
                if self._is_class((*names, entry.name)) and (below is not None or len(names) == self.has_splits):
                    self._folders.add((*names, entry.name)[self.has_splits :])
            elif (
                entry.is_symlink()
                and not os.path.exists(entry.path)
                and not entry.name.lower().endswith(IMAGE_SUFFIXES)
            ):
                self.other_folders.add(os.path.relpath(entry.path, self.root))
            else:
                yield entry, names

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
