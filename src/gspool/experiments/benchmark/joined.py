"""Figures of the models of all folds joined, which take minutes and are therefore kept beside the trainings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gspool.evaluation import fair_average
from gspool.experiments.benchmark.taken_over import joined_taken_over, named, whole_repeats
from gspool.experiments.paired import in_percent

if TYPE_CHECKING:
    from jaxtyping import Int64
    from torch import Tensor

    from gspool.evaluation import RunResult
    from gspool.experiments.benchmark.store import Run, Store


def joined_of(
    store: Store, runs: Sequence[Run], folds: int, labels: Int64[Tensor, " Q"], gallery: Int64[Tensor, " G"] | None
) -> dict[str, Any] | None:
    """Give the figures of an arm's joined embeddings, from the store where the same trainings were joined before.

    Where embeddings are missing, those of the result that the trainings were taken over from count, if they are of more
    repeats than could be joined here.
    """
    whole = whole_repeats(runs, folds)
    if not whole:
        return None
    there = whole_repeats([run for run in whole if store.path(run.asked).is_file()], folds)
    figures = joined_taken_over(store, whole, folds)
    if figures is not None and figures["repeats"] > len(there) // folds:
        return _kept(figures)
    if not there:
        return None
    asked = {"folds": folds, "runs": named(store, there)}
    found = store.joined.get(asked)
    if found is None:
        print(f"{runs[0].asked['arm']}: joining the embeddings of {len(there)} trainings", flush=True)
        results = {run.place: store.result(run, labels.device) for run in there}
        found = {"figures": joined_figures(results, folds, labels, gallery)}
        store.joined.put(asked, found)
    return _kept(found["figures"])


def _kept(figures: Mapping[str, Any]) -> dict[str, Any]:
    """Give what a result keeps; ledgers and results of earlier hold more."""
    return {name: figures[name] for name in ("repeats", "combinations", "map_512D", "p1_512D")}


def joined_figures(
    results: Mapping[tuple[int, int], RunResult | None],
    folds: int,
    labels: Int64[Tensor, " Q"],
    gallery: Int64[Tensor, " G"] | None,
) -> dict[str, Any] | None:
    """Give the fair protocol's figures of concatenated models over all combinations of one repeat a fold, in percent.

    Repeats count of which every fold has been trained and all embeddings are there; None where there is none.
    """
    there = {place: result for place, result in results.items() if result is not None}
    seeds = sorted({seed for _, seed in there if all((fold, seed) in there for fold in range(folds))})
    whole = {(fold, seed): there[fold, seed] for fold in range(folds) for seed in seeds}
    if not whole:
        return None
    average = fair_average(whole, labels, gallery)
    return {
        "repeats": len(seeds),
        "combinations": len(average.combinations),
        "map_512D": in_percent(average.concatenated["map@r"]),
        "p1_512D": in_percent(average.concatenated["p@1"]),
    }
