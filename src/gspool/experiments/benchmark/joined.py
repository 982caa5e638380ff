"""Figures of the models of all folds joined, which take minutes and are therefore kept beside the trainings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gspool.evaluation import fair_average
from gspool.experiments.ledger import Ledger

if TYPE_CHECKING:
    from jaxtyping import Int64
    from torch import Tensor

    from gspool.evaluation import RunResult
    from gspool.experiments.benchmark.store import Run, Store


def joined_of(
    store: Store, runs: Sequence[Run], folds: int, labels: Int64[Tensor, " Q"], gallery: Int64[Tensor, " G"] | None
) -> dict[str, Any] | None:
    """Give the figures of an arm's joined embeddings, from the store where the same trainings were joined before."""
    kept = Ledger(store.folder / "joined.jsonl")
    # A training that was made again has other figures, under the same name.
    there = [[store.path(run.asked).name, run.found["metrics"]["map@r"]] for run in runs]
    asked: dict[str, Any] = {"folds": folds}
    asked["runs"] = sorted(each for each in there if (store.folder / each[0]).is_file())
    found = kept.get(asked)
    if found is None:
        print(f"{runs[0].asked['arm']}: joining the embeddings of {len(asked['runs'])} trainings", flush=True)
        results = {run.place: store.result(run, labels.device) for run in runs}
        found = {"figures": joined_figures(results, folds, labels, gallery)}
        kept.put(asked, found)
    figures: dict[str, Any] | None = found["figures"]
    return figures


def joined_figures(
    results: Mapping[tuple[int, int], RunResult | None],
    folds: int,
    labels: Int64[Tensor, " Q"],
    gallery: Int64[Tensor, " G"] | None,
) -> dict[str, Any] | None:
    """Give the fair protocol's figures over all combinations of one repeat a fold, 128D and 512D, in percent.

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
        **{
            f"{metric}_{size}": {"mean": 100 * values[name].mean, "std": 100 * values[name].std}
            for size, values in (("128D", average.separate), ("512D", average.concatenated))
            for metric, name in (("map", "map@r"), ("p1", "p@1"))
        },
    }
