"""A training that ends before GSP has its prototypes: the model it writes pools as average pooling, which is told."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gspool.pooling.warm_start import WarmStart

if TYPE_CHECKING:
    from torch import nn

    from gspool.training.config import TrainConfig


def open_warm_start(model: nn.Module) -> WarmStart | None:
    """Find the warm start of a model that still collects; None where there is none, or it has set the prototypes.

    Example:
        >>> from gspool import GSP
        >>> open_warm_start(GSP(8, prototypes=4, warm_start=16))
        WarmStart(0 of 16 vectors seen)
        >>> open_warm_start(GSP(8, prototypes=4)) is None
        True
    """
    return next((part for part in model.modules() if isinstance(part, WarmStart) and part.collecting), None)


def warm_start_notice(config: TrainConfig, step: int, seen: int) -> str:
    """Say that the model of this step has no prototypes, after so many vectors, and which settings change that."""
    wanted = config.model.pooling_options["warm_start"]
    return (
        f"the {config.model.pooling} of this model (step {step}) has not set its prototypes, and pools as average "
        f"pooling: it has seen {seen:,} vectors and warm_start asks for {wanted:,}; lower "
        "--model.pooling_options.warm_start (not below the number of prototypes), or train longer with "
        "--trainer.max_steps"
    )
