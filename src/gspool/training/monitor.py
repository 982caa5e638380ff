"""The best evaluation, early stopping, and the learning rate on a plateau."""

from __future__ import annotations

import math
from typing import Any, NamedTuple


class Verdict(NamedTuple):
    """What follows from one evaluation."""

    improved: bool
    lr_falls: bool


class Monitor:
    """Watch one number that should grow (Supp. 1.6.4: best validation kept, early stopping, reduce on plateau).

    Args:
        patience: evaluations without a better one before training stops; None never stops.
        plateau: evaluations without a better one before the learning rate falls; None keeps it.

    Example:
        >>> monitor = Monitor(patience=2)
        >>> [monitor.judge(step, value).improved for step, value in ((100, 0.5), (200, 0.4), (300, 0.5))]
        [True, False, False]
        >>> monitor.best_step, monitor.stopped
        (100, True)
    """

    def __init__(self, patience: int | None = None, plateau: int | None = None) -> None:
        self.patience, self.plateau = patience, plateau
        self.best_value = -math.inf
        self.best_step = 0
        self.since_best = 0
        self.since_change = 0
        self.stopped = False

    @property
    def has_best(self) -> bool:
        """Whether anything was watched yet."""
        return self.best_value > -math.inf

    def judge(self, step: int, value: float) -> Verdict:
        """Record an evaluation and decide; equal is not better."""
        improved = value > self.best_value
        if improved:
            self.best_value, self.best_step = value, step
            self.since_best = self.since_change = 0
        else:
            self.since_best += 1
            self.since_change += 1
        self.stopped = self.patience is not None and self.since_best >= self.patience
        lr_falls = self.plateau is not None and self.since_change > self.plateau
        if lr_falls:
            self.since_change = 0
        return Verdict(improved, lr_falls)

    def state_dict(self) -> dict[str, Any]:
        """Return the state as plain numbers."""
        return {name: value for name, value in vars(self).items() if name not in ("patience", "plateau")}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state."""
        vars(self).update(state)
