"""A user's own images: a folder of class sub-folders, or a CSV list."""

from __future__ import annotations

import os
import warnings
from collections import Counter
from pathlib import Path
from typing import Literal

from gspool.data.check import some
from gspool.data.class_folders import ImageFolder, LabelFolder, LeftOut
from gspool.data.csv_list import SPLIT_NAMES, Picture, read_csv
from gspool.data.decode import IMAGE_SUFFIXES, printable
from gspool.data.image_set import GALLERY, SPLITS, ImageSet, Split
from gspool.data.image_source import FileImages
from gspool.data.problems import DataProblemsError, Problem, equal_files
from gspool.data.splits import split_positions

SmallClasses = Literal["stop", "drop", "keep"]
FEWEST_CLASSES = 2
FEWEST_IMAGES = 2
# Shares of train, validation and test.
FRACTIONS = (0.6, 0.2, 0.2)


def folder(
    root: Path,
    split: Split,
    *,
    fractions: tuple[float, float, float] = FRACTIONS,
    zero_shot: bool = True,
    seed: int = 0,
    small_classes: SmallClasses = "stop",
    label: LabelFolder | None = None,
    duplicates: Literal["keep", "drop"] = "keep",
) -> ImageSet:
    """Read images from ``ROOT/CLASS/image.jpg``, from ``ROOT/test/CLASS/image.jpg``, or from a CSV file.

    Where the data does not name its splits, whole classes are assigned to them, so that test classes are never seen in
    training (``zero_shot=False`` assigns the images of every class instead). See `gspool.data.class_folders` and
    `gspool.data.csv_list` for the two layouts.

    Args:
        root: the folder, or the CSV file.
        split: which part; ``all`` is every image, whatever splits the data names.
        fractions: shares of train, validation and test.
        zero_shot: assign whole classes to splits, not the images of every class.
        seed: of that assignment.
        small_classes: what to do with classes of fewer than two images, which have no pair to learn from or to find:
            ``stop`` with a message, ``drop`` them, or ``keep`` them.
        label: where class folders are nested, the ``leaf`` or the ``top`` folder is the class; see
            `gspool.data.class_folders` for the choice that is made, with a warning, unless given.
        duplicates: ``drop`` leaves out files that occur with the same content in several classes, and of equal files of
            one class keeps one, that of the test split if there is one.

    Raises:
        FileNotFoundError: if there is no such folder or file.
        ValueError: with all problems: empty or small classes, one file listed twice, a split with too few classes.

    Warns:
        UserWarning: if files, folders or classes are left out, with their names.
    """
    if duplicates not in ("keep", "drop"):
        raise ValueError(f"duplicates is 'keep' or 'drop', got {duplicates!r}")
    pictures, empty = (list(read_csv(root)), []) if root.is_file() else _list_folder(root, label)
    problems = [] if duplicates == "drop" else _twice(pictures)
    if duplicates == "drop":
        pictures = _without_duplicates(root, pictures)
    if split == "all":
        pictures = [picture._replace(split=None) for picture in pictures]
    pictures, small = _without_small_classes(root, pictures, empty, small_classes)
    if problems + small:
        raise DataProblemsError.of(str(root), problems + small)
    own_splits = {picture.split for picture in pictures if picture.split}
    if split == "all":
        chosen = pictures
    elif own_splits:
        chosen = [picture for picture in pictures if picture.split == split]
    else:
        chosen = _assigned(root, pictures, split, fractions, zero_shot, seed)
    names = sorted({picture.label for picture in chosen})
    if len(names) < FEWEST_CLASSES:
        raise DataProblemsError.of(str(root), [_too_few(root, split, names, pictures, own_splits, fractions)])
    number = {name: label for label, name in enumerate(names)}
    # Where some images have a role, one without is in the gallery: it can be found and is not a query.
    has_roles = any(picture.role for picture in chosen)
    return ImageSet(
        FileImages([picture.path for picture in chosen]),
        [number[picture.label] for picture in chosen],
        names,
        name=Path(os.path.abspath(root)).stem,  # "." has no name of its own
        split=split,
        roles=[picture.role or GALLERY for picture in chosen] if has_roles else None,
    )


def has_splits(root: Path) -> bool:
    """Check whether images of a user come with splits of their own: folders train/, val/, test/, or a CSV column."""
    if root.is_file():
        return any(picture.split for picture in read_csv(root))
    return ImageFolder(root).has_splits


def _list_folder(root: Path, label: LabelFolder | None) -> tuple[list[Picture], list[str]]:
    """List the images of class folders, and the names of classes without an image."""
    walk = ImageFolder(root, label=label)
    pictures = []
    beside = LeftOut()
    for picture in walk:
        path = os.path.relpath(picture.path, root)
        if walk.has_splits and picture.split is None and os.path.dirname(path):
            beside.add(path)
        elif picture.label:
            pictures.append(picture)
        else:
            walk.other_files.add(path)
    if not walk.has_folders:
        raise ValueError(
            f"{root} has no sub-folders; expected one for each class, with its images inside "
            f"(found {sum(1 for _ in root.iterdir())} files"
            + (f"; {walk.other_folders} lead nowhere)" if walk.other_folders.count else ")")
        )
    empty = walk.empty_classes()
    unreadable = sorted({name for name in (*empty, *(each.label for each in pictures)) if printable(name) != name})
    if unreadable:
        raise ValueError(
            f"{root} has {len(unreadable)} class folders whose names are not UTF-8 "
            f"({some([printable(name) for name in unreadable])}); rename them"
        )
    if walk.nesting():
        _tell(root, walk.nesting())
    for left_out, reason in (
        (beside, "images are left out ({}): a folder beside those of train, val and test is no split"),
        (
            walk.other_files,
            "files are left out ({}); images end in " + ", ".join(IMAGE_SUFFIXES) + " and lie in the folder of their "
            "class",
        ),
        (
            walk.other_folders,
            "folders are left out ({}): links to a folder listed already, links below a class folder, links that lead "
            "nowhere, or folders that may not be read",
        ),
    ):
        if left_out.count:
            _tell(root, f"{left_out.count} {reason.format(left_out)}")
    return pictures, empty


def _tell(root: Path, sentence: str) -> None:
    warnings.warn(f"{root}: {sentence}", stacklevel=5)


def _twice(pictures: list[Picture]) -> list[Problem]:
    """Refuse data that names one file twice: it would be its own nearest neighbour, perhaps in another class."""
    first: dict[str, Picture] = {}
    found = []
    for picture in pictures:
        earlier = first.setdefault(os.path.realpath(picture.path), picture)
        if earlier is not picture:
            found.append(
                f"{printable(earlier.path)} as {earlier.label!r} and {printable(picture.path)} as {picture.label!r}"
            )
    if not found:
        return []
    return [Problem(f"{len(found)} files are named twice ({some(found, 3)})", {"data.options.duplicates": "drop"})]


def _without_duplicates(root: Path, pictures: list[Picture]) -> list[Picture]:
    """Leave out files with the content of another: all of them where their classes differ, else all but one."""
    gone: set[int] = set()
    for group in equal_files([picture.path for picture in pictures]):
        gone |= set(group)
        if len({pictures[row].label for row in group}) == 1:
            gone.discard(max(group, key=lambda row: (SPLITS.index(pictures[row].split or "train"), -row)))
    if gone:
        names = [os.path.relpath(pictures[row].path, root if root.is_dir() else root.parent) for row in sorted(gone)]
        _tell(root, f"{len(gone)} images with the content of another are left out ({some(names)})")
    return [picture for row, picture in enumerate(pictures) if row not in gone]


def _without_small_classes(
    root: Path, pictures: list[Picture], empty: list[str], policy: SmallClasses
) -> tuple[list[Picture], list[Problem]]:
    """Apply the policy for classes of fewer than two images, counted in each split that the data names."""
    if policy not in ("stop", "drop", "keep"):
        raise ValueError(f"small_classes is 'stop', 'drop' or 'keep', got {policy!r}")
    counts = Counter((picture.split, picture.label) for picture in pictures)
    single = sorted({label for (_, label), count in counts.items() if count < FEWEST_IMAGES})
    if policy == "drop":
        if empty or single:
            names = some(sorted({*empty, *single}), 20)
            _tell(root, f"{len({*empty, *single})} classes of fewer than two images are left out ({names})")
        return [picture for picture in pictures if counts[picture.split, picture.label] >= FEWEST_IMAGES], []
    remedy = {"data.options.small_classes": "drop"}
    problems = []
    if empty:
        problems.append(Problem(f"{len(empty)} classes without an image ({some(empty)}); fill or delete them", remedy))
    if single and policy == "stop":
        text = (
            f"{len(single)} classes with a single image ({some(single)}), which have no pair to learn from or to find"
        )
        problems.append(Problem(f"{text}; add images, or keep them by small_classes='keep'", remedy))
    return pictures, problems


def _assigned(
    root: Path,
    pictures: list[Picture],
    split: Split,
    fractions: tuple[float, float, float],
    zero_shot: bool,
    seed: int,
) -> list[Picture]:
    """Return the part of one split: whole classes, or some images of every class."""
    of_class: dict[str, list[Picture]] = {}
    for picture in pictures:
        of_class.setdefault(picture.label, []).append(picture)
    names = sorted(of_class)
    part = SPLITS.index(split)
    if zero_shot:
        return [picture for row in split_positions(names, fractions, seed)[part] for picture in of_class[names[row]]]
    # Relative to the root: the same images in another place are assigned in the same way.
    place = root if root.is_dir() else root.parent
    chosen: list[Picture] = []
    for name in names:
        files = [os.path.relpath(picture.path, place) for picture in of_class[name]]
        chosen += [of_class[name][row] for row in split_positions(files, fractions, seed)[part]]
    return chosen


def _too_few(
    root: Path,
    split: Split,
    names: list[str],
    pictures: list[Picture],
    own_splits: set[Split],
    fractions: tuple[float, float, float],
) -> Problem:
    """Return why a split cannot be used, and what to change."""
    total = len({picture.label for picture in pictures})
    if total < FEWEST_CLASSES:
        return Problem(f"it has {total} class with images ({some(names)}); metric learning needs at least two")
    if own_splits:
        text = f"its {split} split has {len(names)} classes ({some(names)}), at least two are needed"
        if not names and len(own_splits) == 1 and root.is_dir():
            (only,) = (path for path in root.iterdir() if SPLIT_NAMES.get(path.name.lower()) in own_splits)
            text += f"; there is only {only.name}/. To divide its classes into splits, give {only} as the root"
            return Problem(text, {"data.root": only})
        return Problem(text, {"trainer.monitor_split": "none"} if split == "validation" else {})
    return Problem(
        f"of its {total} classes, fractions {fractions} give {len(names)} to {split}, at least two are needed; choose "
        "other fractions, such as (0.5, 0.0, 0.5) without validation, or assign images instead of classes",
        {"data.options.zero_shot": False},
    )
