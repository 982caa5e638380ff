"""What published data sets share: find or download the files, check the counts, cut folds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from gspool.data.download import Archive, fetch, unpack
from gspool.data.image_set import GALLERY, QUERY, ImageSet, Split
from gspool.data.image_source import FileImages
from gspool.data.splits import Fold, class_fold
from gspool.files import lock


class Count(NamedTuple):
    """A number of images and of classes."""

    images: int
    classes: int

    def __str__(self) -> str:
        return f"{self.images:,} images of {self.classes:,} classes"


class Entry(NamedTuple):
    """One line of an official list; ``number`` is that of its class, where classes are numbered."""

    path: Path
    class_name: str
    role: str | None = None
    number: int = 0


@dataclass(frozen=True, kw_only=True)
class Published:
    """A published data set: its folder, files that identify it, its layout, page and archive."""

    name: str
    folder: str
    marks: tuple[str, ...]
    layout: str
    page: str
    archive: Archive | None = None

    def locate(self, root: Path, download: bool) -> Path:
        """Find the folder of the data set under ``root``; unpack or download its archive where that is possible."""
        for place in (root, root / self.folder):
            if any((place / mark).exists() for mark in self.marks):
                return place
        archive = self.archive
        if archive is not None and (download or (root / archive.file_name).is_file()):
            root.mkdir(parents=True, exist_ok=True)
            busy = f"another process is downloading or unpacking {archive.file_name} in {root}; wait until it is done"
            with lock(root / f".{archive.file_name}.lock", busy, optional=True):
                return unpack(fetch(archive, root), self.folder, root)
        if archive is not None:
            remedy = (
                f"pass download=True (--download of gspool train, evaluate and reproduce) to fetch it from "
                f"{archive.url}, or put {archive.file_name} into {root} yourself"
            )
        else:
            remedy = f"it cannot be downloaded automatically: get it at {self.page}"
        raise FileNotFoundError(
            f"{self.name} was not found in {root} nor in {root / self.folder} (looked for "
            f"{' or '.join(self.marks)}); {remedy}. Expected layout:\n{self.layout}"
        )

    def check_count(self, part: str, found: Count, expected: Count, folder: Path, allow_partial: bool) -> None:
        """Refuse other counts than the published ones, unless ``allow_partial`` is set and there is an image."""
        if found != expected and not (found.images and allow_partial):
            raise ValueError(
                f"{self.name}/{part} must have {expected}, {folder} has {found}; complete it, or use what is there "
                "with allow_partial=True (in a run: --data.options.allow_partial true). Expected layout:\n"
                + self.layout
            )


@dataclass(frozen=True, kw_only=True)
class Benchmark(Published):
    """A published data set of image files; calling it returns one split.

    Args:
        counts: what ``train`` and ``test``, or ``query`` and ``gallery``, must hold.
        read: takes the folder and ``train`` or ``test``, and returns the lines of the official list.
        train_classes: where lists do not name the part, classes up to this number are for training; then ``read``
            returns the lines of both parts.
    """

    counts: dict[str, Count]
    read: Callable[[Path, str], Iterable[Entry]]
    train_classes: int | None = None

    def __call__(
        self,
        root: Path,
        split: Split,
        *,
        fold: int | None = None,
        folds: int = 4,
        allow_partial: bool = False,
        download: bool = False,
    ) -> ImageSet:
        """Return one split; ``validation`` is a fold of the training classes, which ``train`` then leaves out.

        Args:
            root: the folder of the data set, or the one above it.
            split: ``train``, ``validation`` or ``test``.
            fold: which block of the training classes validates.
            folds: number of blocks; 4 in the fair protocol, 5 for tuning.
            allow_partial: go on if files are missing.
            download: fetch the archive if the data is not there.

        Raises:
            FileNotFoundError: if the data is not under ``root``.
            ValueError: if images are missing and ``allow_partial`` is not set, a line of a list is not as published, or
                validation is requested without a fold.
        """
        part = official_part(self.name, split, fold, "classes")
        listed = list(self.read(self.locate(root, download), part))
        if self.train_classes is not None:
            listed = [entry for entry in listed if (entry.number <= self.train_classes) == (part == "train")]
            # By class, so that folds and labels do not depend on the layout of the files.
            listed.sort(key=lambda entry: entry.number)
        groups = (QUERY, GALLERY) if part == "test" and QUERY in self.counts else (part,)
        entries: list[Entry] = []
        for group in groups:
            own = [entry for entry in listed if len(groups) == 1 or entry.role == group]
            entries += present(f"{self.name}/{group}", own, self.counts[group], allow_partial)
        # Classes are numbered in the order in which they first appear.
        number = {label: row for row, label in enumerate(dict.fromkeys(entry.class_name for entry in entries))}
        images = ImageSet(
            FileImages([entry.path for entry in entries]),
            [number[entry.class_name] for entry in entries],
            tuple(number),
            name=self.name,
            split=split,
            roles=[entry.role for entry in entries if entry.role is not None] or None,
        )
        return part_of_fold(images, fold, folds, class_fold)


def part_of_fold(images: ImageSet, fold: int | None, folds: int, cut: Callable[[ImageSet, int, int], Fold]) -> ImageSet:
    """Return the side of a fold that the split of a set names; a test set, and one without a fold, stays whole."""
    if images.split == "test" or fold is None:
        return images
    both = cut(images, fold, folds)
    return both.train if images.split == "train" else both.validation


def present(what: str, entries: Sequence[Entry], expected: Count, allow_partial: bool) -> list[Entry]:
    """Check a list against the published counts and against the disk; return the entries whose files exist."""
    here = [entry for entry in entries if entry.path.is_file()]
    found = Count(len(here), len({entry.class_name for entry in here}))
    if found == expected or (here and allow_partial):
        return here
    listed = Count(len(entries), len({entry.class_name for entry in entries}))
    absent = next((entry.path for entry in entries if not entry.path.is_file()), None)
    raise ValueError(
        f"{what} must have {expected}; the list names {listed} and {found} are on disk"
        + ("" if absent is None else f", the first missing file is {absent}")
        + ". Unpack the archive again"
        + (", or pass allow_partial=True to use what is there" if here else "")
    )


def official_part(name: str, split: Split, fold: int | None, folded: str) -> str:
    """Return the official part, ``train`` or ``test``, that a split is cut from; validation needs a fold."""
    if split == "validation" and fold is None:
        raise ValueError(
            f"{name} has no validation part of its own: choose a fold of its training {folded} with fold=0, 1, ... "
            "and train with the same fold"
        )
    return "test" if split == "test" else "train"


def lines_of(table: Path, fields: str, skip: int = 0) -> Iterable[list[str]]:
    """Read the lines of an official list as values, one for each name in ``fields``; ``a|b`` means one of these."""
    names = fields.split()
    for row, line in enumerate(table.read_text(encoding="utf-8").splitlines(), start=1):
        values = line.split()
        if row <= skip or not values:
            continue
        if len(values) != len(names) or any(
            "|" in name and value not in name.split("|") for name, value in zip(names, values, strict=True)
        ):
            raise ValueError(f"{table}, line {row}: expected {fields}, got {line!r}")
        yield values


def read_matlab(path: Path) -> dict[str, Any]:
    """Read a MATLAB file with its structs as records and one-element arrays unwrapped."""
    import numpy as np
    from scipy.io import loadmat

    try:
        content = loadmat(path, squeeze_me=True, struct_as_record=False)
    except (ValueError, TypeError, OSError) as problem:
        raise ValueError(f"{path} cannot be read as a MATLAB file ({problem})") from problem
    # squeeze_me turns a list of one into the one: readers expect a list.
    return {name: np.atleast_1d(value) for name, value in content.items() if not name.startswith("__")}
