"""Find the problems of a data set before any work: all of them, with names, and the options that go on without them."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Literal, NamedTuple

from gspool.data.check import ImageCheck, check_images, first_lines, in_memory, some
from gspool.data.image_set import SPLITS, ImageSet, Split
from gspool.data.registry import create
from gspool.files import sha256_of

OPTION = "data.options."


class Problem(NamedTuple):
    """One kind of problem: a sentence with the count and the first names, and how to go on without it.

    Attributes:
        text: the sentence.
        remedy: options of a run that go on without it, such as ``{"data.check": "skip"}``; empty if there is none.
        stops: whether training cannot go on; otherwise it is only told.
    """

    text: str
    remedy: Mapping[str, Any] = {}
    stops: bool = True


class DataProblemsError(ValueError):
    """A data set that cannot be used as it is; ``problems`` has all that were found."""

    problems: tuple[Problem, ...] = ()

    @classmethod
    def of(cls, name: str, problems: Sequence[Problem]) -> DataProblemsError:
        """Return the error that lists all problems, and the options that go on without them."""
        texts = [one.text for one in problems]
        text = texts[0] if len(texts) == 1 else "\n- ".join([f"{len(texts)} problems", *texts])
        options = {key: value for one in problems for key, value in one.remedy.items() if key.startswith(OPTION)}
        words = [f"{key.removeprefix(OPTION)}={value!r}" for key, value in options.items()]
        if run := remedy_words(problems):
            text += f"\nTo go on without them: {', '.join([*words, f'in a run {run}'])}"
        error = cls(f"{name}: {text}")
        error.problems = tuple(problems)
        return error


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
    sets, problems = _list_splits(name, root, splits, options or {})
    train = sets.get("train")
    if train is not None and train.num_classes < classes_per_batch:
        text = f"train has {train.num_classes} classes, a batch takes {classes_per_batch} different ones"
        problems.append(Problem(text, {"data.classes_per_batch": train.num_classes}))
    if train is not None and train.roles is None:
        counts = zip(train.class_names, train.counts().tolist(), strict=True)
        small = [label for label, count in counts if count < images_per_class]
        if small:
            text = f"train: {len(small)} classes have fewer than {images_per_class} images, which repeat in a batch"
            problems.append(Problem(f"{text} ({some(small)})", stops=False))
    if name == "folder":
        problems += _equal_files(sets)
    if prepare is not None:
        sets = {split: prepare(images) for split, images in sets.items()}
    checks: list[ImageCheck] = []
    for split, images in sets.items() if check != "none" else ():
        if in_memory(images):
            continue
        try:
            checks.append(check_images(images, "skip", progress=progress))
        except ValueError as error:
            problems.append(Problem(str(error)))
        else:
            sets[split] = checks[-1].images
    problems += _unreadable(checks, stops=check == "stop")
    return DataCheck(sets, tuple(problems))


def equal_files(paths: Sequence[str | os.PathLike[str]]) -> list[list[int]]:
    """Return the positions of files with the same content, one list for each content; missing files have none.

    Only files of equal size are read.
    """
    by_size: dict[int, list[int]] = {}
    for position, path in enumerate(paths):
        if os.path.isfile(path):
            by_size.setdefault(os.path.getsize(path), []).append(position)
    groups: dict[str, list[int]] = {}
    for position in chain.from_iterable(rows for size, rows in by_size.items() if size and len(rows) > 1):
        groups.setdefault(sha256_of(Path(paths[position])), []).append(position)
    return [sorted(group) for group in groups.values() if len(group) > 1]


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


def _equal_files(sets: Mapping[Split, ImageSet]) -> list[Problem]:
    """Return the problem of equal files in several classes, or in several splits."""
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
        Problem(f"{len(groups)} pictures are in several {kind}:\n{first_lines(groups)}", remedy, stops=False)
        for kind, groups in across.items()
        if groups
    ]


def _unreadable(found: Sequence[ImageCheck], stops: bool) -> list[Problem]:
    """Return the problems of broken images, of links that lead nowhere, and of classes that are lost with them."""
    reasons: dict[str, list[str]] = {"images cannot be read": [], "links lead nowhere": []}
    for one in chain.from_iterable(check.broken for check in found):
        path = one.reason.split(": ")[0]
        is_dead_link = os.path.islink(path) and not os.path.exists(path)
        reasons["links lead nowhere" if is_dead_link else "images cannot be read"].append(one.reason)
    texts = [f"{len(each):,} {kind}:\n{first_lines(each)}" for kind, each in reasons.items() if each]
    lost = [name for check in found for name in check.lost_classes]
    if lost:
        texts.append(f"{len(lost)} classes have no image that can be read ({some(lost, 20)})")
    return [Problem(text, {"data.check": "skip"}, stops) for text in texts]
