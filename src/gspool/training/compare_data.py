"""The data of a comparison: which pictures teach and which test, for both tasks, and how folds cut them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import torch

from gspool import data
from gspool.data import ImageSet
from gspool.data.check import some
from gspool.data.folder import FRACTIONS, has_splits
from gspool.data.image_source import ArrayImages, FileImages, ImageSource, selected
from gspool.data.registry import option_names
from gspool.data.splits import split_positions
from gspool.evaluation.folds import contiguous_folds
from gspool.features import TokenSet
from gspool.training.config import DataConfig
from gspool.training.frozen import token_entries
from gspool.training.gpu_data import TensorSet

if TYPE_CHECKING:
    from jaxtyping import Bool, Int64
    from torch import Tensor

TaskName = Literal["embed", "classify"]
# Shares of the pictures of every class to learn from and to test on, where the data has no such split of its own.
SHARES = (0.8, 0.0, 0.2)


class Tokens(NamedTuple):
    """What every worker trains on: tokens of the pictures to learn from and of those to test on."""

    learning: TokenSet
    test: TokenSet


def create_sets(config: DataConfig, task: TaskName = "embed") -> tuple[ImageSet, ImageSet]:
    """Return the pictures to learn from, of which folds are held out for validation, and those to test on.

    Data that names a validation split gives train and validation together to learn from. The task "embed" tests on
    classes that are not learned. "classify" tests on other pictures of the same classes: on the test split of the data
    if it has the classes of the training split, else on a part of every class.
    """
    options = {name: value for name, value in config.options.items() if name not in ("fold", "folds")}
    if config.name == "folder" and config.root and not has_splits(Path(config.root)):
        if task == "classify":
            options["zero_shot"] = False
        # Folds validate: the classes that others would hold out for it are learned from as well.
        train, validation, test_share = options.get("fractions", FRACTIONS)
        options["fractions"] = (train + validation, 0.0, test_share)
    learning = data.create(config.name, config.root, "train", **options)
    if "fold" not in option_names(config.name):
        with suppress(ValueError):  # data without a validation split
            learning = joined([learning, data.create(config.name, config.root, "validation", **options)])
    test = data.create(config.name, config.root, "test", **options)
    if task == "embed":
        shared = sorted({*test.class_names} & {*learning.class_names})
        if shared:
            raise ValueError(
                f"{test.name}: {len(shared)} classes are in both the training and the test split ({some(shared)}), and "
                "--task embed tests on classes that are not learned. Use --task classify, or keep a class in one split"
            )
        return learning, test
    if {*test.class_names} <= {*learning.class_names}:
        number = {name: label for label, name in enumerate(learning.class_names)}
        test.labels = torch.tensor([number[test.class_names[label]] for label in test.labels.tolist()])
        test.class_names = learning.class_names
        return learning, test
    return divided(joined([learning, test]), int(options.get("seed", 0)))


def joined(parts: Sequence[ImageSet]) -> ImageSet:
    """Join sets of files, or sets in memory; classes of the same name become one."""
    names = list(dict.fromkeys(name for part in parts for name in part.class_names))
    number = {name: label for label, name in enumerate(names)}
    labels = [number[part.class_names[label]] for part in parts for label in part.labels.tolist()]
    found = [selected(part.images) for part in parts]
    images: ImageSource
    if all(isinstance(source, FileImages) for source, _ in found):
        images = FileImages([source.paths[row] for source, rows in found for row in rows.tolist()])
    elif all(isinstance(source, ArrayImages) for source, _ in found):
        images = ArrayImages(torch.cat([source.pixels[rows] for source, rows in found]), parts[0].name)
    else:
        raise ValueError(f"{parts[0].name}: the pictures of its splits come neither from files nor from arrays")
    return ImageSet(images, labels, names, name=parts[0].name)


def divided(images: ImageSet, seed: int) -> tuple[ImageSet, ImageSet]:
    """Divide the pictures of every class 80 : 20 by a hash of their names; a class of two or fewer is all learned."""
    names = [Path(images.describe(index)).name for index in range(len(images))]
    learning: list[int] = []
    test: list[int] = []
    for label in range(images.num_classes):
        rows = (images.labels == label).nonzero().flatten().tolist()
        parts = split_positions([names[row] for row in rows], SHARES, seed)
        learning += [rows[place] for place in parts.train]
        test += [rows[place] for place in parts.test]
    if not test:
        raise ValueError(f"{images.name}: no class has the three pictures that leave one to test on; add pictures")
    halves = images.subset(learning), images.subset(test)
    halves[1].split = "test"
    return halves


def check_sets(learning: ImageSet, test: ImageSet, folds: int, task: TaskName = "embed") -> None:
    """Check that every fold has something to learn from and to validate on."""
    counts = learning.counts()
    classes = int((counts > 0).sum())
    if task == "classify":
        if classes < 2:
            raise ValueError(f"a classifier needs at least two classes with pictures to learn from, got {classes}")
        if int(counts.sum()) < 2 * folds or int(counts.max()) < 2:
            raise ValueError(
                f"{folds} folds need {2 * folds} pictures to learn from, and classes with at least two; the data has "
                f"{int(counts.sum())} pictures of {classes} classes, {int(counts.max())} in the largest. Add pictures, "
                "or lower --folds"
            )
        if not all(picture_fold(learning.labels, folds, fold).any() for fold in range(folds)):
            raise ValueError(
                f"too few classes have two pictures or more to validate {folds} folds; add pictures, or lower --folds"
            )
        return
    if classes < 2 * folds:
        raise ValueError(
            f"{folds} folds need at least {2 * folds} classes to learn from, so that each validates on two; the data "
            f"has {classes} beside {test.num_classes} test classes. Add classes, or lower --folds"
        )


def with_fitting_batches(config: DataConfig, learning: ImageSet, folds: int, task: TaskName) -> DataConfig:
    """Lower the classes of a batch to those that every fold trains on."""
    if task != "embed":
        return config
    smallest = min(len(fold.train_classes) for fold in contiguous_folds(learning.labels, folds))
    if config.classes_per_batch <= smallest:
        return config
    print(f"batches of {config.classes_per_batch} classes shrink to the {smallest} that every fold has")
    return replace(config, classes_per_batch=smallest)


def token_sets(tokens: Tokens, folds: int, fold: int, task: TaskName = "embed") -> dict[str, TensorSet]:
    """Return train, validation and test of a fold; every view of a training picture is an entry of its own."""
    learning = tokens.learning
    train, validation = token_entries(learning, "train"), token_entries(learning, "validation")
    if task == "classify":
        held = picture_fold(learning.labels, folds, fold)
        train = train.subset((~held).repeat_interleave(learning.views).nonzero().flatten())
        validation = validation.subset(held.nonzero().flatten())
    else:
        classes = contiguous_folds(learning.labels, folds)[fold]
        train = train.of_classes(classes.train_classes.tolist())
        validation = validation.of_classes(classes.validation_classes.tolist())
    return {"train": train, "validation": validation, "test": token_entries(tokens.test, "test")}


def picture_fold(labels: Int64[Tensor, " N"], folds: int, fold: int) -> Bool[Tensor, " N"]:
    """Mark the pictures that validate: one in ``folds`` of every class, always the same; a single one never.

    Example:
        >>> held = [picture_fold(torch.tensor([0, 0, 1, 1, 1, 2]), 2, fold) for fold in (0, 1)]
        >>> (held[0].long() + held[1]).tolist()
        [1, 1, 1, 1, 1, 0]
    """
    shuffled = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    by_class = shuffled[labels[shuffled].argsort(stable=True)]
    sorted_labels = labels[by_class]
    _, counts = sorted_labels.unique_consecutive(return_counts=True)
    rank = torch.cat([torch.arange(int(count)) for count in counts])
    held = torch.zeros(len(labels), dtype=torch.bool)
    # Classes begin at different folds, so that small ones do not all validate the same fold.
    held[by_class] = ((rank + sorted_labels) % folds == fold) & (counts.repeat_interleave(counts) > 1)
    return held
