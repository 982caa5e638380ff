"""How validation went, loss by loss."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib

# Before pyplot, which would look for a screen.
matplotlib.use("Agg")

from matplotlib import pyplot

from gspool.experiments.benchmark.tables import in_order, row_name
from gspool.experiments.benchmark.verdict import FEWEST

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


MOST_IN_A_ROW = 3

Place = tuple[int, int]
Run = dict[str, Any]


def validation_curve(runs: list[dict[str, Any]]) -> tuple[list[int], list[float]]:
    """Average the validation MAP@R of runs over the steps that all of them reached.

    Example:
        >>> curves = ["100:20.00 200:22.00 300:21.00", "100:24.00 200:26.00"]
        >>> validation_curve([{"found": {"curve": curve}} for curve in curves])
        ([100, 200], [22.0, 24.0])
    """
    curves = [
        {int(step): float(value) for step, value in (point.split(":") for point in run["found"]["curve"].split())}
        for run in runs
    ]
    steps = sorted(set.intersection(*(set(curve) for curve in curves)))
    return steps, [math.fsum(curve[step] for curve in curves) / len(curves) for step in steps]


def draw(value: dict[str, Any], path: Path) -> None:
    """Save validation curves, one panel a loss.

    Losses of which no layer has enough pairs for an interval are left out, unless there are no others.
    """
    arms = in_order(value["arms"])
    enough = [arm["loss"] for arm in arms if (arm["difference_from_gap"] or {"pairs": 0})["pairs"] >= FEWEST]
    losses = [*dict.fromkeys(enough or [arm["loss"] for arm in arms])]
    columns = min(MOST_IN_A_ROW, len(losses))
    rows = math.ceil(len(losses) / columns)
    size = (0.4 + 4.2 * columns, 3.6 * rows)
    figure, grid = pyplot.subplots(rows, columns, figsize=size, layout="constrained", squeeze=False)
    for axes in grid.flat[len(losses) :]:
        axes.set_axis_off()
    for axes, loss in zip(grid.flat, losses, strict=False):
        _draw_curves(value, [arm for arm in arms if arm["loss"] == loss], axes)
    save(figure, path)


def _draw_curves(value: dict[str, Any], arms: list[dict[str, Any]], axes: Axes) -> None:
    made = {arm["arm"]: _by_place(value["runs"], arm["arm"]) for arm in arms}
    shared = shared_places(made, arms[0]["loss"])
    if not shared:
        axes.set_axis_off()
        return
    for arm in (arm for arm in arms if shared <= set(made[arm["arm"]])):
        name = row_name(arm)
        runs = [made[arm["arm"]][place] for place in sorted(shared)]
        axes.plot(*validation_curve(runs), label=name, color="black" if name == "gap" else None)
    title = f"{value['data']}, {arms[0]['loss']}, means of {len(shared)} run{'s' * (len(shared) > 1)}"
    axes.set(title=title, xlabel="step", ylabel="validation MAP@R, %")
    axes.legend(fontsize=8)


def shared_places(made: Mapping[str, Collection[Place]], loss: str) -> set[Place]:
    """Give the folds and seeds that GAP and GSP share; where one is missing, those of the arm that has most.

    Folds differ by more than layers do: a curve of one fold beside the mean of four would mislead.

    Example:
        >>> shared_places({"c2 gap": [(0, 0), (0, 1)], "c2 gsp": [(0, 0)]}, "c2")
        {(0, 0)}
    """
    both = [made[name] for name in (f"{loss} gap", f"{loss} gsp") if name in made]
    shared = set(both[0]) & set(both[1]) if len(both) > 1 else set()
    return shared or max((set(places) for places in made.values()), key=len)


def _by_place(runs: Sequence[Run], arm: str) -> dict[Place, Run]:
    """Give the runs of an arm that have kept their curve, by fold and seed."""
    own = [run for run in runs if run["asked"]["arm"] == arm and run["found"]["curve"]]
    return {(run["asked"]["fold"], run["asked"]["seed"]): run for run in own}


def save(figure: Figure, path: Path) -> None:
    """Save without date and version of the library, so that the same figure is the same file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110, metadata={"Software": None})
    pyplot.close(figure)
