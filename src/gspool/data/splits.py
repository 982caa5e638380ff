"""Split classes or images into parts; the same seed always gives the same parts."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch

if TYPE_CHECKING:
    from gspool.data.image_set import ImageSet


class Fold(NamedTuple):
    """The two parts of one fold."""

    train: ImageSet
    validation: ImageSet


class Parts(NamedTuple):
    """Positions that belong to each split."""

    train: list[int]
    validation: list[int]
    test: list[int]


def class_fold(images: ImageSet, fold: int, folds: int = 4) -> Fold:
    """Hold out one of ``folds`` contiguous blocks of classes for validation and train on the others.

    Where the classes do not divide evenly, the first blocks hold one class more. The fair protocol has 4 blocks, the
    tuning protocol 5 (Supp. "Training Splits").

    Raises:
        ValueError: if there is no such fold, or there are fewer classes than folds.

    Example:
        >>> from gspool.data import create
        >>> glyphs = create("glyphs", images_per_class=2)
        >>> class_fold(glyphs, fold=0).validation.class_names == glyphs.class_names[:50]
        True
    """
    _check_fold(images, fold, folds, images.num_classes, "classes")
    classes = range(images.num_classes)
    held = _block(images.num_classes, fold, folds)
    return _named(images.of_classes(set(classes) - set(held)), images.of_classes(held))


def image_fold(images: ImageSet, fold: int, folds: int = 10) -> Fold:
    """Hold out one of ``folds`` contiguous blocks of the images of every class, for classification.

    Raises:
        ValueError: if there is no such fold, or a class has fewer images than there are folds.
    """
    _check_fold(images, fold, folds, int(images.counts().min()), "images in the smallest class")
    held: list[int] = []
    for label in range(images.num_classes):
        rows = (images.labels == label).nonzero().flatten()
        held += rows[_block(len(rows), fold, folds)].tolist()
    is_held = torch.zeros(len(images), dtype=torch.bool)
    is_held[held] = True
    return _named(images.subset((~is_held).nonzero().flatten()), images.subset(is_held.nonzero().flatten()))


def _block(count: int, fold: int, folds: int) -> range:
    """Return the positions of one block; the first blocks take what does not divide evenly."""
    size, more = divmod(count, folds)
    start = fold * size + min(fold, more)
    return range(start, start + size + (fold < more))


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


def split_positions(names: Sequence[str], fractions: tuple[float, float, float], seed: int) -> Parts:
    """Assign positions to train, validation and test by the given fractions.

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
    first = round(fractions[0] * len(order))
    second = round((fractions[0] + fractions[1]) * len(order))
    return Parts(sorted(order[:first]), sorted(order[first:second]), sorted(order[second:]))
