"""Settings are compared over the seeds that all of them were trained with: one seed differs from another by as much."""

from __future__ import annotations

from collections.abc import Collection
from statistics import fmean
from typing import Any

from gspool.experiments.benchmark.store import Run, runs_by_arm, runs_of


def over_shared_seeds(value: dict[str, Any], names: Collection[str]) -> dict[str, dict[str, Any]]:
    """Give the arms of these names that were trained, with figures of the seeds that all of them have.

    Where they share none, figures are those of all seeds.

    Example:
        >>> def run(arm, seed, reached):
        ...     found = {"validation": reached, "entropy": 1.0}
        ...     return {"asked": {"arm": arm, "fold": 0, "seed": seed}, "found": found}
        >>> arms = [{"arm": "a", "validation_map": 45.0, "runs": 2}, {"arm": "b", "validation_map": 41.0, "runs": 1}]
        >>> value = {"arms": arms, "runs": [run("a", 0, 0.40), run("a", 1, 0.50), run("b", 0, 0.41)]}
        >>> [(arm["validation_map"], arm["runs"]) for arm in over_shared_seeds(value, ["a", "b", "c"]).values()]
        [(40.0, 1), (41.0, 1)]
    """
    arms = {arm["arm"]: arm for arm in value["arms"] if arm["arm"] in names}
    by_arm = runs_by_arm(runs_of(value))
    runs = {name: by_arm.get(name, []) for name in arms}
    seeds = [{run.asked["seed"] for run in each} for each in runs.values()]
    shared = set.intersection(*seeds) if seeds else set()
    if not shared:
        return arms
    return {
        name: arm | _figures([run for run in runs[name] if run.asked["seed"] in shared]) for name, arm in arms.items()
    }


def _figures(runs: list[Run]) -> dict[str, Any]:
    entropies = [run.found["entropy"] for run in runs if run.found["entropy"] is not None]
    return {
        "validation_map": 100 * fmean(run.found["validation"] for run in runs),
        "entropy": fmean(entropies) if entropies else None,
        "runs": len(runs),
    }
