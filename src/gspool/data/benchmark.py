"""What the published benchmarks share: finding or fetching the tree, counting it, cutting folds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from gspool.data.download import Archive, fetch
from gspool.data.image_set import ImageSet, Split
from gspool.data.image_source import FileImages
from gspool.data.location import find_folder
from gspool.data.splits import class_fold
from gspool.data.unpack import unpack


class Count(NamedTuple):
    """How many images of how many classes."""

    images: int
    classes: int

    def __str__(self) -> str:
        return f"{self.images:,} images of {self.classes:,} classes"


class Benchmark(NamedTuple):
    """A published data set: its folder, the file that gives it away, what to do when it is not there."""

    name: str
    folder: str
    marks: tuple[str, ...]
    layout: str
    page: str
    archive: Archive | None = None


class Entry(NamedTuple):
    """One line of an official list."""

    path: Path
    class_name: str
    role: str | None = None


def locate(benchmark: Benchmark, root: Path, download: bool) -> Path:
    """Find the folder of a benchmark under ``root``, unpacking or downloading its archive where that is possible.

    Raises:
        FileNotFoundError: if it is not there; the message says what to put where.
    """
    found = find_folder(root, benchmark.folder, benchmark.marks)
    if found is not None:
        return found
    archive = benchmark.archive
    if archive is not None and (download or (root / archive.file_name).is_file()):
        return unpack(fetch(archive, root), archive.folder, root)
    if archive is not None:
        way = (
            f"pass download=True (--download of gspool train, evaluate and reproduce) to fetch it from {archive.url}, "
            f"or put {archive.file_name} into {root} yourself"
        )
    else:
        way = f"it has no address to download from without a person: get it at {benchmark.page}"
    raise FileNotFoundError(
        f"{benchmark.name} was not found in {root} nor in {root / benchmark.folder} (looked for "
        f"{' or '.join(benchmark.marks)}); {way}. Expected layout:\n{benchmark.layout}"
    )


def present(name: str, entries: Sequence[Entry], expected: Count, split: str, allow_partial: bool) -> list[Entry]:
    """Check a list against the published counts and against the disk; give the entries whose files are there.

    Raises:
        ValueError: if anything is missing and ``allow_partial`` is not set, or if nothing at all is there.
    """
    here = [entry for entry in entries if entry.path.is_file()]
    found = Count(len(here), len({entry.class_name for entry in here}))
    if found == expected:
        return here
    listed = Count(len(entries), len({entry.class_name for entry in entries}))
    there = {entry.path for entry in here}
    absent = next((entry.path for entry in entries if entry.path not in there), None)
    example = "" if absent is None else f", the first missing file is {absent}"
    if not here or not allow_partial:
        raise ValueError(
            f"{name}/{split} must have {expected}; the list names {listed} and {found} are on disk{example}. "
            + (
                "Unpack the archive again"
                + (", or pass allow_partial=True to go on with what is there" if here else "")
            )
        )
    return here


def assemble(
    benchmark: Benchmark,
    entries: Sequence[Entry],
    split: Split,
    *,
    fold: int | None,
    folds: int,
) -> ImageSet:
    """Make the set of one split from its entries; classes are numbered in the order they first appear.

    ``validation`` is a fold of the training classes, and ``train`` with a fold leaves that fold out.
    """
    names = tuple(dict.fromkeys(entry.class_name for entry in entries))
    number = {name: label for label, name in enumerate(names)}
    roles = [entry.role for entry in entries if entry.role is not None]
    images = ImageSet(
        FileImages([entry.path for entry in entries]),
        [number[entry.class_name] for entry in entries],
        names,
        name=benchmark.name,
        split=split,
        roles=roles or None,
    )
    if split == "test" or fold is None:
        return images
    both = class_fold(images, fold, folds)
    return both.train if split == "train" else both.validation


def official_part(name: str, split: Split, fold: int | None) -> Split:
    """Say which official part a split is cut from.

    Raises:
        ValueError: if validation is asked for without saying which fold.
    """
    if split == "validation" and fold is None:
        raise ValueError(
            f"{name} has no validation part of its own: choose a fold of its training classes with fold=0, 1, ... "
            "(of folds=4 in the fair protocol, folds=5 for tuning), and train with the same fold"
        )
    return "test" if split == "test" else "train"
