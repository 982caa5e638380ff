"""Folds of the training classes: contiguous parts, each held out once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from gspool.evaluation.checked_input import as_labels, check_integer

if TYPE_CHECKING:
    from jaxtyping import Int
    from torch import Tensor


class Fold(NamedTuple):
    """The classes a model is trained on and those it is validated on; both sorted, and disjoint."""

    train_classes: Int[Tensor, " K"]
    validation_classes: Int[Tensor, " V"]

    def rows(self, labels: Int[Tensor, " N"]) -> FoldRows:
        """Find the rows of a data set that fall to either side.

        Example:
            >>> contiguous_folds([0, 1, 2, 3], folds=4)[0].rows(torch.tensor([3, 0, 1])).validation.tolist()
            [1]
        """
        return FoldRows(
            train=torch.isin(labels, self.train_classes).nonzero().flatten(),
            validation=torch.isin(labels, self.validation_classes).nonzero().flatten(),
        )


class FoldRows(NamedTuple):
    """Rows of a data set to train on and to validate on."""

    train: Int[Tensor, " T"]
    validation: Int[Tensor, " V"]


def contiguous_folds(labels: Any, folds: int = 4) -> tuple[Fold, ...]:
    """Hold out each contiguous part of the sorted training classes once (Supp. 1.6.2).

    Where the classes do not divide evenly, the first parts hold one class more.

    Args:
        labels: the training labels, one an image or one a class; order and repeats do not matter.
        folds: how many parts: 4 for the fair protocol, 5 for tuning.

    Raises:
        ValueError: if labels are not integers, or there are fewer classes than folds, or ``folds`` is below 2.

    Example:
        >>> [fold.validation_classes.tolist() for fold in contiguous_folds([5, 5, 6, 7, 8, 9], folds=4)]
        [[5, 6], [7], [8], [9]]
    """
    labels = as_labels(labels, "labels")
    check_integer(folds, 2, "folds must be an integer of at least 2, so that something is left to train on")
    classes = labels.unique()
    if len(classes) < folds:
        raise ValueError(f"{folds} folds need at least {folds} training classes, got {len(classes)}")
    parts = classes.tensor_split(folds)
    return tuple(
        Fold(train_classes=torch.cat([*parts[:held_out], *parts[held_out + 1 :]]), validation_classes=parts[held_out])
        for held_out in range(folds)
    )
