"""Find the problems of a data set before any work: all of them, with names, and the options that go on without them."""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch

from gspool.data.decode import BrokenImageError
from gspool.data.image_set import SPLITS, ImageSet, Split
from gspool.data.registry import create
from gspool.terminal.bar import work_bar

SHOWN = 10
OPTION = "data.options."


class Problem(NamedTuple):
    """One kind of problem: a sentence with the count and the first names, and how to go on without it.

    Args:
        text: the sentence.
        remedy: options of a run that go on without it, such as ``{"data.check": "skip"}``; empty if there is none.
        stops: whether training cannot go on; otherwise it is only told.
    """

    text: str
    remedy: Mapping[str, Any] = {}
    stops: bool = True


class DataProblemsError(ValueError):
    """A data set that cannot be used as it is; ``problems`` has all that were found."""

    def __init__(self, name: str, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        run = remedy_words(problems)
        options = {key: value for one in problems for key, value in one.remedy.items() if key.startswith(OPTION)}
        words = ", ".join(f"{key.removeprefix(OPTION)}={value!r}" for key, value in options.items())
        go_on = f"\nTo go on without them: {words}{', ' if words else ''}in a run {run}" if run else ""
        super().__init__(f"{name}: {_listed([one.text for one in problems])}{go_on}")


class Broken(NamedTuple):
    """An image that cannot be read: its position in the set that was checked, and the reason."""

    position: int
    reason: str


class ImageCheck(NamedTuple):
    """The result of a check: the set without broken images, how many were checked, and which are broken."""

    images: ImageSet
    checked: int
    broken: tuple[Broken, ...]
    lost_classes: tuple[str, ...] = ()

    def __str__(self) -> str:
        if not self.broken:
            return f"{self.images!r}: all {self.checked:,} images can be read"
        lost = f"\nNo image is left of {len(self.lost_classes)} classes: {some(self.lost_classes, 20)}"
        return (
            f"{len(self.broken):,} of {self.checked:,} images cannot be read:\n"
            + _lines([one.reason for one in self.broken])
            + (lost if self.lost_classes else "")
        )


class DataCheck(NamedTuple):
    """The splits that can be used, without broken images, and all problems that were found."""

    sets: dict[Split, ImageSet]
    problems: tuple[Problem, ...]

    @property
    def stops(self) -> tuple[Problem, ...]:
        """The problems that training cannot go on with."""
        return tuple(one for one in self.problems if one.stops)

    def remedy(self) -> str | None:
        """Return the options of a run that go on without all problems that stop; None if one has no remedy."""
        return remedy_words(self.stops) if all(one.remedy for one in self.stops) else None


def find_problems(
    name: str,
    root: str | os.PathLike[str] | None = None,
    splits: Sequence[Split] = SPLITS,
    *,
    options: Mapping[str, Any] | None = None,
    check: Literal["stop", "skip", "none"] = "stop",
    classes_per_batch: int = 0,
    images_per_class: int = 0,
    prepare: Callable[[ImageSet], ImageSet] | None = None,
    progress: bool = False,
) -> DataCheck:
    """Find all problems of the splits of a data set at once.

    These are splits that cannot be listed, files and folders that are left out, classes too small for a split or a
    batch, broken images, links that lead nowhere, and for images of a user (``folder``) equal files in several classes
    or splits.

    Args:
        name: of the data set, as for `create`.
        root: its folder.
        splits: those that are needed.
        options: of the data set.
        check: ``stop`` decodes every image, and broken ones stop; with ``skip`` they are only told; ``none`` decodes
            nothing.
        classes_per_batch: P of the training batches, compared with the classes of the split ``train``; 0 does not.
        images_per_class: m of the training batches, likewise.
        prepare: makes the set whose images are decoded and returned, such as one with a cache.
        progress: show a progress bar.

    Raises:
        FileNotFoundError: if the data is not there.

    Example:
        >>> find_problems("glyphs", splits=["train"], options={"images_per_class": 1}, images_per_class=4).problems[0]
        Problem(text='train: 200 classes have fewer than 4 images, ...', remedy={}, stops=False)
    """
    sets, problems = _list_splits(name, root, splits, dict(options or {}))
    train = sets.get("train")
    if train is not None and train.num_classes < classes_per_batch:
        remedy = {"data.classes_per_batch": train.num_classes}
        problems.append(
            Problem(f"train has {train.num_classes} classes, a batch takes {classes_per_batch} different ones", remedy)
        )
    if train is not None and (small := _classes_below(train, images_per_class)):
        text = f"train: {len(small)} classes have fewer than {images_per_class} images, which repeat in a batch"
        problems.append(Problem(f"{text} ({some(small)})", stops=False))
    if name == "folder":
        problems += _equal_files(sets)
    broken: list[ImageCheck] = []
    for split, images in sets.items() if check != "none" else ():
        try:
            broken.append(check_images(prepare(images) if prepare else images, "skip", progress=progress))
        except ValueError as error:
            problems.append(Problem(str(error)))
        else:
            sets[split] = broken[-1].images
    problems += _unreadable(broken, stops=check == "stop")
    return DataCheck(sets, tuple(problems))


def check_images(
    images: ImageSet,
    policy: Literal["stop", "skip"] = "stop",
    *,
    workers: int | None = None,
    progress: bool = False,
) -> ImageCheck:
    """Decode every image once; broken and missing ones raise an error, or are counted and left out.

    On a set with a cache (`cached`) this also fills the cache, so that nothing is decoded twice.

    Args:
        images: the set to check; its transform is not applied.
        policy: ``stop`` raises if any image is broken; ``skip`` returns the set without them. Classes that lose all
            their images are removed and the labels renumbered.
        workers: number of threads; one for each core, at most 8, unless given.
        progress: show a progress bar.

    Raises:
        ValueError: under ``stop`` if any image is broken, under ``skip`` if none is left; the message names them.

    Example:
        >>> from gspool import data
        >>> print(check_images(data.create("glyphs", split="test", images_per_class=1)))
        glyphs/test: 100 images of 100 classes: all 100 images can be read
    """
    if policy not in ("stop", "skip"):
        raise ValueError(f"policy is 'stop' or 'skip', got {policy!r}")
    threads = min(os.cpu_count() or 1, 8) if workers is None else workers
    if threads < 1:
        raise ValueError(f"workers must be at least 1, got {workers}")

    def check(index: int) -> Broken | None:
        try:
            images.images[index]
        except BrokenImageError as problem:
            return Broken(index, str(problem))
        return None

    broken = []
    pool = ThreadPoolExecutor(threads)
    try:
        with work_bar(f"checking {images.name}/{images.split}", 0, len(images), progress, "images") as bar:
            for result in pool.map(check, range(len(images))):
                bar.advance()
                if result is not None:
                    broken.append(result)
    finally:
        # On Ctrl-C, drop what has not started instead of waiting for all of it.
        pool.shutdown(cancel_futures=True)
    if not broken:
        return ImageCheck(images, len(images), ())
    if policy == "stop" or len(broken) == len(images):
        raise ValueError(
            f"{images.name}/{images.split}: {len(broken):,} of {len(images):,} images cannot be read; repair or remove "
            f"them{', or continue without them: policy=skip (in a run: --data.check skip)' if policy == 'stop' else ''}"
            f":\n{_lines([one.reason for one in broken])}"
        )
    is_sound = torch.ones(len(images), dtype=torch.bool)
    is_sound[[one.position for one in broken]] = False
    sound = images.subset(is_sound.nonzero().flatten()).without_empty_classes()
    lost = tuple(name for name in images.class_names if name not in {*sound.class_names})
    return ImageCheck(sound, len(images), tuple(broken), lost)


def equal_files(paths: Sequence[str | os.PathLike[str]]) -> list[list[int]]:
    """Return the positions of files with the same content, one list for each content; missing files have none.

    Only files of equal size are read.
    """
    by_size: dict[int, list[int]] = {}
    for position, path in enumerate(paths):
        if os.path.isfile(path):
            by_size.setdefault(os.path.getsize(path), []).append(position)
    groups: dict[bytes, list[int]] = {}
    for position in chain.from_iterable(rows for size, rows in by_size.items() if size and len(rows) > 1):
        with Path(paths[position]).open("rb") as file:
            groups.setdefault(hashlib.file_digest(file, "sha256").digest(), []).append(position)
    return [sorted(group) for group in groups.values() if len(group) > 1]


def some(names: Sequence[str], shown: int = 5) -> str:
    """Return the first names.

    Example:
        >>> some(["ant", "bee", "cat"], 2)
        'ant, bee, ...'
    """
    return ", ".join(names[:shown]) + (", ..." if len(names) > shown else "")


def remedy_words(problems: Sequence[Problem]) -> str:
    """Return the options of a run that go on without these problems, as words of a command."""
    options = {key: value for one in problems for key, value in one.remedy.items()}
    return " ".join(f"--{key} {str(value).lower() if value is False else value}" for key, value in options.items())


def _list_splits(
    name: str, root: str | os.PathLike[str] | None, splits: Sequence[Split], options: Mapping[str, Any]
) -> tuple[dict[Split, ImageSet], list[Problem]]:
    """List the splits, with the remedies of the problems that were found until nothing is left that has one."""
    problems: list[Problem] = []
    applied: dict[str, Any] = {}
    while True:
        sets: dict[Split, ImageSet] = {}
        remedies: dict[str, Any] = {}
        for split in splits:
            found: list[Problem] = []
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always")
                try:
                    sets[split] = create(name, root, split, **{**options, **applied})
                except DataProblemsError as error:
                    found += error.problems
                except ValueError as error:
                    found.append(Problem(str(error)))
            # Later rounds only tell what the remedies do.
            if not applied:
                found += [Problem(str(one.message), stops=False) for one in told]
            problems += [one for one in found if one not in problems]
            remedies |= {k.removeprefix(OPTION): v for one in found for k, v in one.remedy.items() if OPTION in k}
        if remedies.items() <= applied.items():
            return sets, problems
        applied |= remedies


def _classes_below(images: ImageSet, fewest: int) -> list[str]:
    return [name for name, count in zip(images.class_names, images.counts().tolist(), strict=True) if count < fewest]


def _equal_files(sets: Mapping[Split, ImageSet]) -> list[Problem]:
    """Tell of equal files in several classes, or in several splits."""
    rows = [(split, row) for split, images in sets.items() for row in range(len(images))]
    paths = [sets[split].describe(row) for split, row in rows]
    across: dict[str, list[str]] = {"classes": [], "splits": []}
    for group in equal_files(paths):
        classes = {sets[split].class_names[int(sets[split].labels[row])] for split, row in (rows[i] for i in group)}
        if len(classes) > 1 or len({rows[i][0] for i in group}) > 1:
            names = " = ".join(paths[i] for i in group[:3])
            across["classes" if len(classes) > 1 else "splits"].append(names)
    remedy = {f"{OPTION}duplicates": "drop"}
    return [
        Problem(f"{len(groups)} pictures are in several {kind}:\n{_lines(groups)}", remedy, stops=False)
        for kind, groups in across.items()
        if groups
    ]


def _unreadable(found: Sequence[ImageCheck], stops: bool) -> list[Problem]:
    """Tell of images that cannot be read, of links that lead nowhere, and of the classes that are lost with them."""
    reasons: dict[str, list[str]] = {"images cannot be read": [], "links lead nowhere": []}
    for one in chain.from_iterable(check.broken for check in found):
        path = one.reason.split(": ")[0]
        is_dead_link = os.path.islink(path) and not os.path.exists(path)
        reasons["links lead nowhere" if is_dead_link else "images cannot be read"].append(one.reason)
    texts = [f"{len(each):,} {kind}:\n{_lines(each)}" for kind, each in reasons.items() if each]
    lost = [name for check in found for name in check.lost_classes]
    if lost:
        texts.append(f"{len(lost)} classes have no image that can be read ({some(lost, 20)})")
    return [Problem(text, {"data.check": "skip"}, stops) for text in texts]


def _listed(texts: Sequence[str]) -> str:
    return texts[0] if len(texts) == 1 else "\n".join([f"{len(texts)} problems", *(f"- {text}" for text in texts)])


def _lines(reasons: Sequence[str]) -> str:
    lines = [f"  {reason}" for reason in reasons[:SHOWN]]
    return "\n".join(lines + ([f"  ... and {len(reasons) - SHOWN:,} more"] if len(reasons) > SHOWN else []))
