"""Finished trainings and records of them with the figures that a test names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gspool.executor.run_store import Run
from gspool.experiments.retrieval_figures import by_variant, variant_figures
from gspool.experiments.retrieval_training import Variant

Values = Mapping[tuple[int, int], float]


def finished(variant: Variant, test: Values, validation: Values | None = None, **found: Any) -> list[Run]:
    """Trainings of one variant by fold and seed."""
    return [
        Run(
            {
                "variant": variant.name,
                "loss": variant.loss,
                "pooling": variant.pooling,
                "setting": variant.setting,
                "changes": variant.differences,
                "fold": fold,
                "seed": seed,
            },
            {
                "metrics": {"map@r": value, "p@1": 2 * value, "r@1": 2 * value},
                "validation": (validation or test)[fold, seed],
                "entropy": 0.9,
                "learned": {"mu": 0.3},
                "ending": "patience",
                "steps": 10,
                "best_step": 5,
                "seconds": 1.0,
                "images_per_second": 320.0,
                "curve": "100:20.00 200:22.00",
                "mean_weights": "0.500 1.500 1.000 1.000",
                **found,
            },
            {},
        )
        for (fold, seed), value in test.items()
    ]


def record_of(runs: list[Run], protocol: str = "fair") -> dict[str, Any]:
    """The record of a result that holds these trainings."""
    groups = by_variant(runs)
    variants = [variant_figures(own, groups.get(f"{own[0].asked['loss']} gap", own)) for own in groups.values()]
    value = {"data": "cub", "protocol": protocol, "backbone": "keras/resnet50", "variants": variants}
    return {"value": {**value, "runs": [run._asdict() for run in runs]}}
