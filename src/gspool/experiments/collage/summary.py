"""Figures of the collage study, averaged over seeds, as rows of its result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean, stdev
from typing import Any


def summary_rows(found: Mapping[tuple[str, str, int], Mapping[str, Any]], seeds: Sequence[int]) -> list[dict[str, Any]]:
    """Average over seeds: one row a layer and loss, figures in percent, with what each seed gave.

    Example:
        >>> figures = {"map@r": 0.1, "p@1": 0.5, "validation": 0.2, "entropy": 1.0, "on_object": 0.25}
        >>> summary_rows({("GAP", "c2", 0): figures}, seeds=[0])[0]["map@r"]
        10.0
    """
    rows = []
    for name, loss in dict.fromkeys(key[:2] for key in found):
        runs = {seed: found[name, loss, seed] for seed in seeds if (name, loss, seed) in found}
        values = [100 * run["map@r"] for run in runs.values()]
        rows.append(
            {
                "row": name,
                "loss": loss,
                "map@r": round(mean(values), 2),
                "std": round(stdev(values), 2) if len(values) > 1 else None,
                "by_seed": {str(seed): round(100 * run["map@r"], 2) for seed, run in runs.items()},
                "p@1": round(100 * mean(run["p@1"] for run in runs.values()), 2),
                "validation": round(100 * mean(run["validation"] for run in runs.values()), 2),
                "entropy": _mean([run.get("entropy") for run in runs.values()]),
                "on_object": _mean([run.get("on_object") for run in runs.values()]),
                "by_sub_class": _percent([run.get("by_sub_class") for run in runs.values()]),
            }
        )
    return rows


def search_rows(found: Mapping[tuple[str, str, str], Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One row a variant of the search, with what it reached on validation classes, and on test classes afterwards."""
    return [
        {
            "pooling": pooling,
            "loss": loss,
            "variant": name,
            "validation": round(100 * run["validation"], 2),
            "test": round(100 * run["map@r"], 2),
            "entropy": _mean([run.get("entropy")]),
            "on_object": _mean([run.get("on_object")]),
            "by_sub_class": _percent([run.get("by_sub_class")]),
        }
        for (pooling, loss, name), run in found.items()
    ]


def _percent(values: Sequence[float | None]) -> float | None:
    return _mean([None if value is None else 100 * value for value in values])


def _mean(values: Sequence[float | None]) -> float | None:
    there = [value for value in values if value is not None]
    return round(mean(there), 4) if there else None
