"""What a result knows of its trainings that they cannot tell again without what lies beside them where they were made.

Embeddings of single models, of which those of joined models consist, and mean maps in all digits are not part of a
result. What it says of them stays true for as long as its trainings are the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gspool.experiments.benchmark.store import runs_by_arm, runs_of

if TYPE_CHECKING:
    from gspool.experiments.benchmark.store import Run, Store


def take_over_figures(store: Store, value: Mapping[str, Any], folds: int) -> None:
    """Remember in a store what joined models of a result reach, and what places weigh on average."""
    by_arm = runs_by_arm(runs_of(value))
    for arm in value["arms"]:
        own = by_arm.get(arm["arm"], [])
        _keep(store, _joined(store, whole_repeats(own, folds), folds), arm["joined"])
        _keep(store, _mean_map(store, own), arm.get("mean_weights"))


def joined_taken_over(store: Store, whole: Sequence[Run], folds: int) -> dict[str, Any] | None:
    """Give what these models reach joined, by a result of the same trainings."""
    found: dict[str, Any] | None = store.joined.get(_joined(store, whole, folds))
    return found


def map_taken_over(store: Store, runs: Sequence[Run]) -> list[float] | None:
    """Give what places weigh on average over these runs, by a result of them; None where they know it themselves.

    A result holds the map of a run as a line of few digits.
    """
    if not any(isinstance(run.found.get("mean_weights"), str) for run in runs):
        return None
    found: list[float] | None = store.joined.get(_mean_map(store, runs))
    return found


def whole_repeats(runs: Sequence[Run], folds: int) -> list[Run]:
    """Give the runs of those seeds that every fold was trained with; only these can be joined.

    Example:
        >>> from gspool.experiments.benchmark.store import Run
        >>> runs = [Run({"fold": fold, "seed": seed}, {}) for fold, seed in ((0, 0), (1, 0), (0, 1))]
        >>> [run.place for run in whole_repeats(runs, 2)]
        [(0, 0), (1, 0)]
    """
    places = {run.place for run in runs}
    return [run for run in runs if all((fold, run.asked["seed"]) in places for fold in range(folds))]


def named(store: Store, runs: Sequence[Run]) -> list[list[Any]]:
    """Name trainings; one that was made again has other figures, under the same name."""
    return sorted([store.path(run.asked).name, run.found["metrics"]["map@r"]] for run in runs)


def _joined(store: Store, whole: Sequence[Run], folds: int) -> dict[str, Any]:
    return {"folds": folds, "runs": named(store, whole), "taken_over": "joined"}


def _mean_map(store: Store, runs: Sequence[Run]) -> dict[str, Any]:
    return {"runs": named(store, runs), "taken_over": "mean_weights"}


def _keep(store: Store, asked: Mapping[str, Any], figures: Any) -> None:
    if asked["runs"] and figures is not None and store.joined.get(asked) != figures:
        store.joined.put(asked, figures)
