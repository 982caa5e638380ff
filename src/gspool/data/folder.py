"""A user's own pictures: a folder of class sub-folders, or a CSV list."""

from __future__ import annotations

import os
import warnings
from collections import Counter
from pathlib import Path
from typing import Literal

from gspool.data.class_folders import read_class_folders
from gspool.data.csv_list import Listing, Picture, read_csv
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
    """Read pictures from ``ROOT/CLASS/picture.jpg``, from ``ROOT/train/CLASS/picture.jpg``, or from a CSV file.

    Where the data does not name its splits, whole classes are shared out, so that the test classes were never seen
    (``zero_shot=False`` shares out the images of every class instead). A CSV has columns path and label, and may have
    split and role, see `gspool.data.csv_list`.

    Args:
        root: the folder, or the CSV file.
        split: which part to give.
        fractions: shares of train, validation and test.
        zero_shot: whether classes or images are shared out.
        seed: of that sharing.
        small_classes: what to do about classes with fewer than two images, which have no pair to learn from or to find:
            ``stop`` with a message, ``drop`` them, or ``keep`` them.

    Raises:
        FileNotFoundError: if there is no such folder or file.
        ValueError: for empty or small classes, a single class, one file listed twice, a split with too few classes.
    """
    listing = read_csv(root) if root.is_file() else read_class_folders(root)
    _refuse_duplicates(root, listing.pictures)
    pictures = _without_small_classes(root, listing, small_classes)
    own_splits = any(picture.split for picture in pictures)
    if own_splits:
        chosen = [picture for picture in pictures if picture.split == split]
    else:
        chosen = _shared_out(root, pictures, split, fractions, zero_shot, seed)
    names = sorted({picture.label for picture in chosen})
    if len(names) < FEWEST_CLASSES:
        raise ValueError(_too_few(root, split, names, pictures, own_splits, fractions))
    number = {name: label for label, name in enumerate(names)}
    # Where some images have a role, one without is in the gallery: it can be found and is not asked for.
    has_roles = any(picture.role for picture in chosen)
    return ImageSet(
        FileImages([picture.path for picture in chosen]),
        [number[picture.label] for picture in chosen],
        names,
        name=root.stem,
        split=split,
        roles=[picture.role or GALLERY for picture in chosen] if has_roles else None,
    )


def has_splits(root: Path) -> bool:
    """Check whether images of a user come with splits of their own: folders train/, val/, test/, or a CSV column.

    Raises:
        FileNotFoundError: if there is no such folder or file.
        ValueError: as `folder`.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # whoever lists the images next warns of files that are left out
        listing = read_csv(root) if root.is_file() else read_class_folders(root)
    return any(picture.split for picture in listing.pictures)


def _refuse_duplicates(root: Path, pictures: list[Picture]) -> None:
    """Refuse data that names one file twice: it would be its own nearest neighbour, perhaps in another class."""
    first: dict[Path, Picture] = {}
    for picture in pictures:
        earlier = first.setdefault(picture.path.resolve(), picture)
        if earlier is not picture:
            raise ValueError(
                f"{root} names one file twice: {earlier.path} as {earlier.label!r} and {picture.path} as "
                f"{picture.label!r}; leave one of them out"
            )


def _without_small_classes(root: Path, listing: Listing, policy: SmallClasses) -> list[Picture]:
    """Apply the policy for classes of fewer than two images, counted in each split that the data names."""
    if policy not in ("stop", "drop", "keep"):
        raise ValueError(f"small_classes is 'stop', 'drop' or 'keep', got {policy!r}")
    counts = Counter((picture.split, picture.label) for picture in listing.pictures)
    filled = {label for _, label in counts}
    empty = [name for name in listing.class_names if name not in filled]
    lone = sorted({label for (_, label), count in counts.items() if count < FEWEST_IMAGES})
    if empty and policy != "drop":
        raise ValueError(
            f"{root} has {len(empty)} classes without a picture ({_some(empty)}); fill or delete their folders, "
            "or pass small_classes='drop' (to a run: --data.options.small_classes drop)"
        )
    if lone and policy == "stop":
        raise ValueError(
            f"{root} has {len(lone)} classes with a single picture ({_some(lone)}), which have no pair to learn from "
            "or to find; add pictures, or pass small_classes='drop' to leave them out, 'keep' to keep them as they are "
            "(to a run: --data.options.small_classes drop)"
        )
    if policy == "drop":
        return [picture for picture in listing.pictures if counts[picture.split, picture.label] >= FEWEST_IMAGES]
    return listing.pictures


def _shared_out(
    root: Path,
    pictures: list[Picture],
    split: Split,
    fractions: tuple[float, float, float],
    zero_shot: bool,
    seed: int,
) -> list[Picture]:
    """Share out whole classes, or the images of every class."""
    of_class: dict[str, list[Picture]] = {}
    for picture in pictures:
        of_class.setdefault(picture.label, []).append(picture)
    names = sorted(of_class)
    part = SPLITS.index(split)
    if zero_shot:
        return [picture for row in split_positions(names, fractions, seed)[part] for picture in of_class[names[row]]]
    # Named from the root on: the same pictures in another place are shared out in the same way.
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
    """Say why a split is of no use, and what would help."""
    total = len({picture.label for picture in pictures})
    if total < FEWEST_CLASSES:
        return f"{root} has {total} class with pictures ({_some(names)}); metric learning needs two to tell apart"
    if own_splits:
        return f"{root}: its {split} split has {len(names)} classes ({_some(names)}); at least two are needed"
    return (
        f"{root}: of its {total} classes, fractions {fractions} give {len(names)} to {split}, at least two are needed; "
        "choose other fractions, such as (0.5, 0.0, 0.5) without validation, or zero_shot=False to share out images "
        "(to a run: --data.options.zero_shot false)"
    )


def _some(names: list[str]) -> str:
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
