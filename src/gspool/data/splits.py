"""Seeds, and splits of classes or images into parts; the same seed always gives the same parts."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch

if TYPE_CHECKING:
    from gspool.data.image_set import ImageSet

# What NumPy and Lightning accept too, so that one seed works everywhere.
LARGEST_SEED = 2**32 - 1


class Fold(NamedTuple):
    """The two parts of one fold."""

    train: ImageSet
    validation: ImageSet


class ImageSplits(NamedTuple):
    """The three parts of a set whose classes are all in every part."""

    train: ImageSet
    validation: ImageSet
    test: ImageSet


class Parts(NamedTuple):
    """Positions that belong to each split."""

    train: list[int]
    validation: list[int]
    test: list[int]


def class_fold(images: ImageSet, fold: int, folds: int = 4) -> Fold:
    """Hold out one of ``folds`` contiguous blocks of classes for validation and train on the others.

    Where the classes do not divide evenly, the first blocks hold one class more. The fair protocol has 4 blocks, the
    tuning protocol 5 (Supp. "Training Splits"). A block has at least two classes: within a single one, every neighbour
    is right.

    Raises:
        ValueError: if there is no such fold, or there are fewer than two classes a fold.

    Example:
        >>> from gspool.data import create
        >>> glyphs = create("glyphs", images_per_class=2)
        >>> class_fold(glyphs, fold=0).validation.class_names == glyphs.class_names[:50]
        True
    """
    _check_fold(images, fold, folds, images.num_classes // 2, "folds of at least two classes")
    held = torch.arange(images.num_classes).tensor_split(folds)[fold].tolist()
    return _named(images.of_classes(set(range(images.num_classes)) - set(held)), images.of_classes(held))


def image_fold(images: ImageSet, fold: int, folds: int = 10) -> Fold:
    """Hold out one of ``folds`` contiguous blocks of the images of every class, for classification.

    Raises:
        ValueError: if there is no such fold, or a class has fewer images than there are folds.
    """
    _check_fold(images, fold, folds, int(images.counts().min()), "images in the smallest class")
    is_held = torch.zeros(len(images), dtype=torch.bool)
    for label in range(images.num_classes):
        is_held[(images.labels == label).nonzero().flatten().tensor_split(folds)[fold]] = True
    return _named(images.subset((~is_held).nonzero().flatten()), images.subset(is_held.nonzero().flatten()))


def split_images(
    images: ImageSet, fractions: tuple[float, float, float] = (0.6, 0.2, 0.2), seed: int = 0
) -> ImageSplits:
    """Divide the images of every class into train, validation and test, for classification.

    Every class has at least one image in each part. The order comes from hashes of the names of the files, so it
    depends neither on the folder of the data nor on the order of the set, and an image that is left out moves few of
    the others.

    Raises:
        ValueError: if a class has fewer than three images, or the fractions are not three positive numbers with sum 1.

    Example:
        >>> from gspool.data import create
        >>> split_images(create("tokens", samples_per_class=10), seed=1).test
        tokens/test: 32 images of 16 classes
    """
    if min(fractions) <= 0:
        raise ValueError(f"train, validation and test need a positive share each, got fractions {tuple(fractions)}")
    small = [name for name, count in zip(images.class_names, images.counts().tolist(), strict=True) if count < 3]
    if small:
        raise ValueError(
            f"{images.name}/{images.split}: {len(small)} classes have fewer than three images "
            f"({', '.join(small[:5])}); train, validation and test need one each: add images or leave these classes out"
        )
    parts = Parts([], [], [])
    for label, class_name in enumerate(images.class_names):
        rows = (images.labels == label).nonzero().flatten().tolist()
        names = [f"{class_name}/{os.path.basename(images.describe(row))}" for row in rows]
        for part, chosen in zip(parts, split_positions(names, fractions, seed, least=1), strict=True):
            part += [rows[position] for position in chosen]
    splits = ImageSplits(*(images.subset(sorted(part)) for part in parts))
    for split, part in splits._asdict().items():
        part.split = split
    return splits


def _named(train: ImageSet, validation: ImageSet) -> Fold:
    train.split, validation.split = "train", "validation"
    return Fold(train, validation)


def _check_fold(images: ImageSet, fold: int, folds: int, available: int, what: str) -> None:
    if folds < 2 or folds > available:
        raise ValueError(f"{images.name}: {folds} folds were requested; possible are 2 to {available} {what}")
    if not 0 <= fold < folds:
        raise ValueError(f"{images.name}: folds are numbered 0..{folds - 1}, got fold {fold}")


def shuffled(names: Sequence[str], seed: int) -> list[int]:
    """Order positions by a hash of seed and name.

    No random generator is involved, so the order does not depend on library versions, and a class added later moves
    few others from one side of a split to the other.
    """

    def digest(name: str) -> bytes:
        # Names of files may be any bytes, which Python keeps as surrogates.
        return hashlib.sha256(f"{seed}\0{name}".encode("utf-8", "surrogateescape")).digest()

    return sorted(range(len(names)), key=lambda row: digest(names[row]))


def split_positions(names: Sequence[str], fractions: tuple[float, float, float], seed: int, least: int = 0) -> Parts:
    """Assign positions to train, validation and test by the given fractions, at least ``least`` to each.

    Raises:
        ValueError: if the fractions are not three numbers from 0 to 1 with sum 1.

    Example:
        >>> parts = split_positions(["ant", "bee", "cat", "dog"], (0.5, 0.0, 0.5), seed=0)
        >>> len(parts.train), len(parts.validation), sorted(parts.train + parts.test)
        (2, 0, [0, 1, 2, 3])
    """
    if len(fractions) != 3 or min(fractions) < 0 or abs(sum(fractions) - 1) > 1e-6:
        raise ValueError(
            f"fractions are the shares of train, validation and test and must add up to 1, got {tuple(fractions)}"
        )
    order = shuffled(names, seed)
    count = len(order)
    first = min(max(round(fractions[0] * count), least), count - 2 * least)
    second = min(max(round((fractions[0] + fractions[1]) * count), first + least), count - least)
    return Parts(sorted(order[:first]), sorted(order[first:second]), sorted(order[second:]))


def checked_seed(seed: int) -> int:
    """Return the seed if it is an integer in the range that every generator accepts.

    Example:
        >>> checked_seed(2**80)
        Traceback (most recent call last):
        ValueError: a seed is a whole number from 0 to 4294967295, got 1208925819614629174706176
    """
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed <= LARGEST_SEED:
        raise ValueError(f"a seed is a whole number from 0 to {LARGEST_SEED}, got {seed!r}")
    return seed
