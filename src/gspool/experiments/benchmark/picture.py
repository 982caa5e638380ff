"""How validation went, loss by loss."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib

# Before pyplot, which would look for a screen.
matplotlib.use("Agg")

from matplotlib import pyplot

from gspool.experiments.benchmark.kept_rows import is_kept
from gspool.experiments.benchmark.store import Run, runs_by_arm, runs_of
from gspool.experiments.benchmark.tables import in_order, row_name
from gspool.experiments.benchmark.verdict import FEWEST

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from gspool.experiments.benchmark.choice import Place


MOST_IN_A_ROW = 3


def validation_curve(runs: Sequence[Run]) -> tuple[list[int], list[float]]:
    """Average the validation MAP@R of runs over the steps that all of them reached.

    Example:
        >>> curves = ["100:20.00 200:22.00 300:21.00", "100:24.00 200:26.00"]
        >>> validation_curve([Run({}, {"curve": curve}) for curve in curves])
        ([100, 200], [22.0, 24.0])
    """
    curves = [
        {int(step): float(value) for step, value in (point.split(":") for point in run.found["curve"].split())}
        for run in runs
    ]
    steps = sorted(set.intersection(*(set(curve) for curve in curves)))
    return steps, [math.fsum(curve[step] for curve in curves) / len(curves) for step in steps]


def draw(value: dict[str, Any], path: Path) -> None:
    """Save validation curves, one panel a loss.

    Losses of which no layer has enough pairs for an interval are left out, unless there are no others.
    """
    runs = [run for run in runs_of(value) if run.found["curve"]]
    drawn = {run.asked["arm"] for run in runs}
    arms = [arm for arm in in_order(value["arms"]) if arm["arm"] in drawn and not is_kept(arm)]
    enough = [arm["loss"] for arm in arms if (arm["difference_from_gap"] or {"pairs": 0})["pairs"] >= FEWEST]
    losses = [*dict.fromkeys(enough or [arm["loss"] for arm in arms])]
    columns = min(MOST_IN_A_ROW, len(losses)) or 1
    rows = math.ceil(len(losses) / columns) or 1
    size = (0.4 + 4.2 * columns, 3.6 * rows)
    figure, grid = pyplot.subplots(rows, columns, figsize=size, layout="constrained", squeeze=False)
    for axes in grid.flat[len(losses) :]:
        axes.set_axis_off()
    for axes, loss in zip(grid.flat, losses, strict=False):
        _draw_curves(runs, [arm for arm in arms if arm["loss"] == loss], value["data"], axes)
    save(figure, path)


def _draw_curves(runs: Sequence[Run], arms: list[dict[str, Any]], data: str, axes: Axes) -> None:
    by_arm = runs_by_arm(runs)
    made = {arm["arm"]: {run.place: run for run in by_arm[arm["arm"]]} for arm in arms}
    shared = shared_places(made, arms[0]["loss"])
    for arm in (arm for arm in arms if shared <= set(made[arm["arm"]])):
        name = row_name(arm)
        curve = validation_curve([made[arm["arm"]][place] for place in sorted(shared)])
        axes.plot(*curve, label=name, color="black" if name == "gap" else None)
    title = f"{data}, {arms[0]['loss']}, means of {len(shared)} run{'s' * (len(shared) > 1)}"
    axes.set(title=title, xlabel="step", ylabel="validation MAP@R, %")
    axes.legend(fontsize=8)


def shared_places(made: Mapping[str, Collection[Place]], loss: str) -> set[Place]:
    """Give the folds and seeds that GAP and GSP share; where these are few, those of the arm that has most.

    Folds differ by more than layers do: a curve of one fold beside the mean of four would mislead.

    Example:
        >>> gap = [(0, seed) for seed in range(5)]
        >>> len(shared_places({"c2 gap": gap, "c2 gsp": gap[:3]}, "c2"))
        3
        >>> len(shared_places({"c2 gap": gap, "c2 gsp": gap[:1]}, "c2"))
        5
    """
    shared = set(made.get(f"{loss} gap", ())) & set(made.get(f"{loss} gsp", ()))
    return shared if len(shared) >= FEWEST else max((set(places) for places in made.values()), key=len)


def save(figure: Figure, path: Path) -> None:
    """Save without date and version of the library, so that the same figure is the same file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110, metadata={"Software": None})
    pyplot.close(figure)
