"""A user's own images: a folder of class sub-folders, or a CSV list."""

from __future__ import annotations

import os
import warnings
from collections import Counter
from pathlib import Path
from typing import Literal

from gspool.data.class_folders import ImageFolder
from gspool.data.csv_list import Picture, read_csv
from gspool.data.decode import IMAGE_SUFFIXES, printable
from gspool.data.image_set import GALLERY, SPLITS, ImageSet, Split
from gspool.data.image_source import FileImages
from gspool.data.splits import split_positions

SmallClasses = Literal["stop", "drop", "keep"]
FEWEST_CLASSES = 2
FEWEST_IMAGES = 2


def folder(
    root: Path,
    split: Split,
    *,
    fractions: tuple[float, float, float] = (0.6, 0.2, 0.2),
    zero_shot: bool = True,
    seed: int = 0,
    small_classes: SmallClasses = "stop",
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

    Raises:
        FileNotFoundError: if there is no such folder or file.
        ValueError: for empty or small classes, a single class, one file listed twice, a split with too few classes.

    Warns:
        UserWarning: if files or folders are left out.
    """
    pictures, class_names = (list(read_csv(root)), []) if root.is_file() else _list_folder(root)
    _refuse_duplicates(root, pictures)
    if split == "all":
        pictures = [picture._replace(split=None) for picture in pictures]
    pictures = _without_small_classes(root, pictures, class_names, small_classes)
    own_splits = any(picture.split for picture in pictures)
    if split == "all":
        chosen = pictures
    elif own_splits:
        chosen = [picture for picture in pictures if picture.split == split]
    else:
        chosen = _assigned(root, pictures, split, fractions, zero_shot, seed)
    names = sorted({picture.label for picture in chosen})
    if len(names) < FEWEST_CLASSES:
        raise ValueError(_too_few(root, split, names, pictures, own_splits, fractions))
    number = {name: label for label, name in enumerate(names)}
    # Where some images have a role, one without is in the gallery: it can be found and is not a query.
    has_roles = any(picture.role for picture in chosen)
    return ImageSet(
        FileImages([picture.path for picture in chosen]),
        [number[picture.label] for picture in chosen],
        names,
        name=root.stem,
        split=split,
        roles=[picture.role or GALLERY for picture in chosen] if has_roles else None,
    )


def _list_folder(root: Path) -> tuple[list[Picture], list[str]]:
    """List the images of class folders and the names of the classes, also of those without an image."""
    walk = ImageFolder(root)
    if not walk.has_folders:
        raise ValueError(
            f"{root} has no sub-folders; expected one for each class, with its images inside "
            f"(found {sum(1 for _ in root.iterdir())} files)"
        )
    pictures = []
    for picture in walk:
        if picture.label:
            pictures.append(picture)
        else:
            walk.other_files.add(os.path.relpath(picture.path, root))
    unreadable = [name for name in walk.class_names if printable(name) != name]
    if unreadable:
        raise ValueError(
            f"{root} has {len(unreadable)} class folders whose names are not UTF-8 "
            f"({_some([printable(name) for name in unreadable])}); rename them"
        )
    if walk.other_files.count:
        warnings.warn(
            f"{root}: {walk.other_files.count} files are left out ({walk.other_files}); images end in "
            f"{', '.join(IMAGE_SUFFIXES)} and lie in the folder of their class",
            stacklevel=4,
        )
    if walk.other_folders.count:
        warnings.warn(
            f"{root}: {walk.other_folders.count} folders are left out ({walk.other_folders}): links to a folder listed "
            "already, links below a class folder, or folders that may not be read",
            stacklevel=4,
        )
    return pictures, sorted(walk.class_names)


def has_splits(root: Path) -> bool:
    """Check whether images of a user come with splits of their own: folders train/, val/, test/, or a CSV column."""
    if root.is_file():
        return any(picture.split for picture in read_csv(root))
    return ImageFolder(root).has_splits


def _refuse_duplicates(root: Path, pictures: list[Picture]) -> None:
    """Refuse data that names one file twice: it would be its own nearest neighbour, perhaps in another class."""
    first: dict[str, Picture] = {}
    for picture in pictures:
        earlier = first.setdefault(os.path.realpath(picture.path), picture)
        if earlier is not picture:
            raise ValueError(
                f"{root} names one file twice: {printable(earlier.path)} as {earlier.label!r} and "
                f"{printable(picture.path)} as {picture.label!r}; leave one of them out"
            )


def _without_small_classes(
    root: Path, pictures: list[Picture], class_names: list[str], policy: SmallClasses
) -> list[Picture]:
    """Apply the policy for classes of fewer than two images, counted in each split that the data names."""
    if policy not in ("stop", "drop", "keep"):
        raise ValueError(f"small_classes is 'stop', 'drop' or 'keep', got {policy!r}")
    counts = Counter((picture.split, picture.label) for picture in pictures)
    filled = {label for _, label in counts}
    empty = [name for name in class_names if name not in filled]
    single = sorted({label for (_, label), count in counts.items() if count < FEWEST_IMAGES})
    if empty and policy != "drop":
        raise ValueError(
            f"{root} has {len(empty)} classes without an image ({_some(empty)}); fill or delete their folders, "
            "or pass small_classes='drop' (to a run: --data.options.small_classes drop)"
        )
    if single and policy == "stop":
        raise ValueError(
            f"{root} has {len(single)} classes with a single image ({_some(single)}), which have no pair to learn from "
            "or to find; add images, or pass small_classes='drop' to leave them out, 'keep' to keep them "
            "(to a run: --data.options.small_classes drop)"
        )
    if policy == "drop":
        return [picture for picture in pictures if counts[picture.split, picture.label] >= FEWEST_IMAGES]
    return pictures


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
    own_splits: bool,
    fractions: tuple[float, float, float],
) -> str:
    """Explain why a split cannot be used, and what to change."""
    total = len({picture.label for picture in pictures})
    if total < FEWEST_CLASSES:
        return f"{root} has {total} class with images ({_some(names)}); metric learning needs at least two"
    if own_splits:
        return f"{root}: its {split} split has {len(names)} classes ({_some(names)}); at least two are needed"
    return (
        f"{root}: of its {total} classes, fractions {fractions} give {len(names)} to {split}, at least two are needed; "
        "choose other fractions, such as (0.5, 0.0, 0.5) without validation, or zero_shot=False to assign images "
        "(to a run: --data.options.zero_shot false)"
    )


def _some(names: list[str]) -> str:
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
