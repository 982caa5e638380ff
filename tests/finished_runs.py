"""Finished trainings of a benchmark, as a store gives them, with the figures that a test names."""

from __future__ import annotations

from gspool.experiments.benchmark.arms import Arm
from gspool.experiments.benchmark.store import Run

Values = dict[tuple[int, int], float]


def finished(arm: Arm, test: Values, validation: Values | None = None, ending: str = "patience") -> list[Run]:
    watched = test if validation is None else validation
    return [
        Run(
            {
                "arm": arm.name,
                "loss": arm.loss,
                "pooling": arm.pooling,
                "variant": arm.variant,
                "fold": place[0],
                "seed": place[1],
            },
            {
                "metrics": {"map@r": value, "p@1": 2 * value, "r@1": 2 * value},
                "validation": watched[place],
                "entropy": 0.9,
                "learned": {"mu": 0.3},
                "ending": ending,
                "steps": 10,
                "best_step": 5,
                "seconds": 1.0,
                "images_per_second": 320.0,
                "curve": "",
            },
        )
        for place, value in test.items()
    ]
