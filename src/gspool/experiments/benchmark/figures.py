"""From finished trainings to the figures of a table: means, and differences from average pooling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from gspool.evaluation import PROTOCOLS, mean_and_std, separate_average
from gspool.experiments.benchmark.arms import COMPARED
from gspool.experiments.benchmark.joined import joined_of
from gspool.experiments.benchmark.store import Run, Store, runs_by_arm, runs_of
from gspool.experiments.benchmark.taken_over import map_taken_over, whole_repeats
from gspool.experiments.paired import Difference, deviation, difference_of, in_percent

if TYPE_CHECKING:
    from gspool.evaluation import Protocol
    from gspool.experiments.benchmark.stand_in import Ground

# What a table shows the mean of, besides the metrics.
MEANS = ("steps", "best_step", "seconds")
# How many mean maps a picture shows.
MOST_MAPS = 8


def paired_difference(runs: Sequence[Run], other: Sequence[Run], metric: str = "map@r") -> Difference | None:
    """Compare two arms run by run, in points; None where they share no fold and seed, or were not measured.

    ``metric`` is one of the test classes, or "validation" for what was watched on the validation classes.

    Example:
        >>> from gspool.experiments.benchmark.store import Run
        >>> places = [{"fold": fold, "seed": 0} for fold in range(3)]
        >>> ours = [Run(place, {"metrics": {"map@r": 0.2 + 0.01 * place["fold"]}}) for place in places]
        >>> theirs = [Run(place, {"metrics": {"map@r": 0.2}}) for place in places]
        >>> found = paired_difference(ours, theirs)
        >>> round(found.mean, 3), round(found.std, 3), found.pairs, found.ahead
        (1.0, 1.0, 3, 2)
    """
    ours, theirs = _by_place(runs, metric), _by_place(other, metric)
    by_fold: dict[int, list[float]] = {}
    for place, value in ours.items():
        if place in theirs:
            by_fold.setdefault(place[0], []).append(100 * (value - theirs[place]))
    return difference_of([*by_fold.values()]) if by_fold else None


def _by_place(runs: Sequence[Run], metric: str) -> dict[tuple[int, int], float]:
    values = {run.place: run.found["validation"] if metric == "validation" else run.found["metrics"] for run in runs}
    return {
        place: value if metric == "validation" else value[metric]
        for place, value in values.items()
        if value is not None
    }


def arm_figures(runs: Sequence[Run], baseline: Sequence[Run]) -> dict[str, Any]:
    """Give the figures of one arm in percent: means over its runs, and its paired difference from the baseline."""
    metrics = mean_and_std([run.found["metrics"] for run in runs])
    entropies = [run.found["entropy"] for run in runs if run.found["entropy"] is not None]
    watched = [run.found["validation"] for run in runs if run.found["validation"] is not None]
    same = runs[0].asked == baseline[0].asked
    difference = None if same else paired_difference(runs, baseline)
    watched_difference = None if same else paired_difference(runs, baseline, "validation")
    asked = runs[0].asked
    return {
        "arm": asked["arm"],
        "loss": asked["loss"],
        "pooling": asked["pooling"],
        "variant": asked["variant"],
        "runs": len(runs),
        "folds": sorted({run.asked["fold"] for run in runs}),
        "seeds": sorted({run.asked["seed"] for run in runs}),
        "map": in_percent(metrics["map@r"]) | _folds_alike(runs, "map@r"),
        "p1": in_percent(metrics["p@1"]) | _folds_alike(runs, "p@1"),
        "recall": {name: 100 * value.mean for name, value in metrics.items() if name.startswith("r@")},
        "validation_map": 100 * fmean(watched) if watched else None,
        "validation_std": 100 * deviation(watched),
        "entropy": fmean(entropies) if entropies else None,
        "mean_weights": mean_map([run.found.get("mean_weights") for run in runs]),
        "learned": _means([run.found["learned"] for run in runs]),
        "difference_from_gap": None if difference is None else difference._asdict(),
        "validation_difference": None if watched_difference is None else watched_difference._asdict(),
        "endings": {
            word: sum(run.found["ending"] == word for run in runs) for word in ("patience", "max_steps", "time")
        },
        **{f"mean_{name}": fmean(run.found[name] for run in runs) for name in MEANS},
    }


def _folds_alike(runs: Sequence[Run], metric: str) -> dict[str, float]:
    """Give the mean over the means of folds where some have fewer runs: folds differ by more than runs of one do."""
    by_fold: dict[int, list[float]] = {}
    for run in runs:
        by_fold.setdefault(run.asked["fold"], []).append(run.found["metrics"][metric])
    if len({len(values) for values in by_fold.values()}) == 1:
        return {}
    return {"mean": 100 * fmean(fmean(values) for values in by_fold.values())}


def arms_of(value: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Give the arms of a result, with what their single models reach over repeats, which follows from its runs."""
    by_arm, protocol = runs_by_arm(runs_of(value)), PROTOCOLS[value["protocol"]]
    combined = protocol.report == "combinations"
    return [
        {**arm, "separate": separate_figures(by_arm.get(arm["arm"], []), protocol.folds) if combined else None}
        for arm in value["arms"]
    ]


def separate_figures(runs: Sequence[Run], folds: int) -> dict[str, Any] | None:
    """Give what single models reach over all combinations of one repeat a fold, in percent.

    Repeats count of which every fold has been trained; None where there is none.
    """
    whole = whole_repeats(runs, folds)
    if not whole:
        return None
    average = separate_average({run.place: run.found["metrics"] for run in whole})
    return {
        "repeats": len(whole) // folds,
        "map": in_percent(average["map@r"]),
        "p1": in_percent(average["p@1"]),
    }


def mean_map(maps: Sequence[Sequence[float] | str | None]) -> list[float] | None:
    """Average what places weigh over the runs that have kept it; None where none has, or maps differ in size.

    A result holds the map of a run as one line of numbers.

    Example:
        >>> mean_map([[1.0, 1.0], None, "0.500 1.500"]), mean_map([None])
        ([0.75, 1.25], None)
    """
    kept = [[float(place) for place in (one.split() if isinstance(one, str) else one)] for one in maps if one]
    if not kept or len({len(one) for one in kept}) > 1:
        return None
    return [fmean(place) for place in zip(*kept, strict=True)]


def maps_of(arms: Sequence[Mapping[str, Any]], most: int = MOST_MAPS) -> dict[str, list[float]]:
    """Give mean maps by the names of their arms: GSP with C2 and ProxyNCA++, then the highest weights.

    Average pooling's says nothing.

    Example:
        >>> kept = [("c2 delf", [0.5, 1.5]), ("c2 gsp", [0.9, 1.1]), ("c2 gmp", None), ("pnca delf", [0.4, 1.6])]
        >>> arms = [{"arm": name, "pooling": name.split()[1], "mean_weights": weights} for name, weights in kept]
        >>> list(maps_of(arms)), list(maps_of(arms, 2))
        (['c2 gsp', 'pnca delf', 'c2 delf'], ['c2 gsp', 'pnca delf'])
    """
    maps = {arm["arm"]: arm["mean_weights"] for arm in arms if arm["pooling"] != "gap" and arm.get("mean_weights")}
    first = [f"{loss} gsp" for loss in COMPARED["fair"][0]]
    ranked = sorted(maps, key=lambda name: (first.index(name) if name in first else len(first), -max(maps[name])))
    return {name: maps[name] for name in ranked[:most]}


def _means(values: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: fmean([value[name] for value in values]) for name in values[0]}


def study_figures(
    store: Store,
    protocol: Protocol,
    ground: Ground,
    wanted: Sequence[str] | None = None,
    known: Sequence[Run] = (),
) -> dict[str, Any]:
    """Give everything about the finished trainings of a store as plain numbers, one entry an arm, and every run.

    Args:
        store: the trainings.
        protocol: how they were made.
        ground: the images, for the labels of the test set.
        wanted: names of arms; None takes all that the store holds.
        known: runs of the result that is there, whose order remains.
    """
    places = {(run.asked["arm"], *run.place): place for place, run in enumerate(known)}
    by_arm = runs_by_arm(sorted(store.runs(), key=lambda run: places.get((run.asked["arm"], *run.place), len(places))))
    names = [*by_arm] if wanted is None else [name for name in wanted if name in by_arm]
    asks, labels = ground.test.asks, ground.test.labels
    questions, gallery = (labels, None) if asks is None else (labels[asks], labels[~asks])
    arms = []
    for name in names:
        runs = by_arm[name]
        baseline = by_arm.get(f"{runs[0].asked['loss']} gap", runs)
        figures = arm_figures(runs, baseline)
        figures["mean_weights"] = map_taken_over(store, runs) or figures["mean_weights"]
        figures["joined"] = None
        if protocol.report == "combinations":
            figures["joined"] = joined_of(store, runs, protocol.folds, questions, gallery)
        figures["best_run"] = {"metrics": max((run.found["metrics"] for run in runs), key=lambda one: one["p@1"])}
        arms.append(figures)
    return {"arms": arms, "runs": [_short(run) for name in names for run in by_arm[name]]}


def _short(run: Run) -> dict[str, Any]:
    """Give a run with its curve in one line, step and validation MAP@R in percent, and its map in another."""
    found, curve, weights = dict(run.found), run.found["curve"], run.found.get("mean_weights")
    if not isinstance(curve, str):
        found["curve"] = " ".join(f"{row['step']}:{100 * row['map@r']:.2f}" for row in curve)
    if weights is not None and not isinstance(weights, str):
        found["mean_weights"] = " ".join(f"{each:.3f}" for each in weights)
    return {"asked": run.asked, "found": found}
