"""What is refused of a study before anything long begins: wrong names, numbers without a sense, missing weights."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from gspool import losses
from gspool.data.seeds import LARGEST_SEED
from gspool.experiments.benchmark.runs import APART
from gspool.models import create_backbone
from gspool.pooling.registry import layer_class

if TYPE_CHECKING:
    from gspool.experiments.benchmark.runs import Study
    from gspool.experiments.experiment import RunOptions

# Options that choose trainings to be made, besides --seeds.
CHOOSING = ("losses", "poolings", "arms", "variants", "folds")


def check_choice(options: RunOptions) -> None:
    """Refuse a choice of trainings where none are made: figures are of all that have been.

    Raises:
        ValueError: if some are chosen.
    """
    chosen = options.settings
    if chosen is None or chosen.train:
        return
    usual = type(chosen)()
    given = [name for name in CHOOSING if getattr(chosen, name, None) != getattr(usual, name, None)]
    flags = [f"--{name}" for name in (["seeds"] if options.seeds else []) + given]
    if flags:
        raise ValueError(
            f"--train false writes the figures of everything that has been trained: leave {' and '.join(flags)} out"
        )


def check_study(study: Study, trains: bool, quick: bool) -> None:
    """Refuse a study that could not be trained, or not as it was meant.

    Args:
        study: what is wanted.
        trains: whether it is to be trained now; figures of what has been trained need neither names nor weights.
        quick: a tiny version has a network of its own, which needs no weights.

    Raises:
        ValueError: if a number has no sense, a name is not known, or the backbone would begin with random weights.
        FileNotFoundError: if the file of the weights is not there.
    """
    check_numbers(study)
    if trains:
        check_weights(study, quick)
        for loss in dict.fromkeys(arm.loss for arm in study.arms):
            losses.create(loss, num_classes=2, dim=2)
        for pooling in dict.fromkeys(arm.pooling for arm in study.arms):
            layer_class(pooling)
        check_backbone(study.backbone, None if quick else study.weights)


def check_numbers(study: Study) -> None:
    """Refuse numbers without a sense."""
    if study.processes < 1:
        raise ValueError(f"--processes counts trainings at a time, from 1 on, got {study.processes}")
    if study.seconds is not None and not study.seconds > 0:
        raise ValueError(f"--seconds is a time to train in, or 0 for no limit, got {study.seconds:g}")
    if study.max_steps < 0:
        raise ValueError(f"--max_steps counts steps, or is 0 for no limit, got {study.max_steps}")
    largest = (LARGEST_SEED - max(study.folds)) // APART
    if max(study.seeds) > largest:
        raise ValueError(f"seeds of a study go up to {largest}, got {max(study.seeds)}")


def check_weights(study: Study, quick: bool) -> None:
    """Refuse a backbone without weights, and weights that are not there."""
    if study.weights is None:
        if not quick:
            raise ValueError(
                f"{study.backbone} would begin with random weights, and the benchmarks begin with those of ImageNet: "
                "give their file with --weights; docs/models.md says where it comes from"
            )
    elif not Path(study.weights).is_file():
        raise FileNotFoundError(f"there is no file {study.weights}; give that of the backbone's weights with --weights")


@functools.cache
def check_backbone(name: str, weights: str | None) -> None:
    """Refuse a backbone that cannot be made, or that does not fit its weights; once, because it takes seconds."""
    with torch.random.fork_rng(devices=[]):
        if weights is not None:
            create_backbone(name, weights=weights)
        else:
            # Without memory or arithmetic.
            with torch.device("meta"):
                create_backbone(name)
