"""The benchmark drawn: how validation went, and how far each row is from average pooling."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import matplotlib

# Before pyplot, which would look for a screen.
matplotlib.use("Agg")

from matplotlib import pyplot
from matplotlib.lines import Line2D

from gspool.experiments.benchmark.paper import paper_deviations, paper_values
from gspool.experiments.benchmark.tables import in_order
from gspool.experiments.benchmark.verdict import FEWEST
from gspool.experiments.paired import interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


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
    """Save one row a loss: validation curves on the left, paired differences from GAP on the right.

    Losses of which no layer has enough pairs for an interval are left to the table, unless there are no others.
    """
    arms = in_order(value["arms"])
    enough = [arm["loss"] for arm in arms if (arm["difference_from_gap"] or {"pairs": 0})["pairs"] >= FEWEST]
    losses = [*dict.fromkeys(enough or [arm["loss"] for arm in arms])]
    figure, grid = pyplot.subplots(len(losses), 2, figsize=(12, 4.2 * len(losses)), layout="constrained", squeeze=False)
    for (curves, differences), loss in zip(grid, losses, strict=True):
        own = [arm for arm in arms if arm["loss"] == loss]
        # Those that have curves first, so that no two curves share one of the ten colours.
        drawn = sorted((arm for arm in own if arm["arm"] != f"{loss} gap"), key=lambda arm: -arm["runs"])
        colours = {f"{loss} gap": "black", **{arm["arm"]: f"C{i % 10}" for i, arm in enumerate(drawn)}}
        _draw_curves(value, own, colours, curves)
        _draw_differences(own, colours, differences)
    save(figure, path)


def _draw_curves(value: dict[str, Any], arms: list[dict[str, Any]], colours: dict[str, str], axes: Axes) -> None:
    # Folds differ by more than layers do: a curve of one fold beside the mean of four would mislead.
    most = max(arm["runs"] for arm in arms)
    for arm in (arm for arm in arms if arm["runs"] == most):
        runs = [run for run in value["runs"] if run["asked"]["arm"] == arm["arm"] and run["found"]["curve"]]
        if runs:
            axes.plot(*validation_curve(runs), label=_name(arm), color=colours[arm["arm"]])
    title = f"{value['data']}, {arms[0]['loss']}, means of {most} runs"
    axes.set(title=title, xlabel="step", ylabel="validation MAP@R, %")
    axes.legend(fontsize=8)


def _draw_differences(arms: list[dict[str, Any]], colours: dict[str, str], axes: Axes) -> None:
    for arm in (arm for arm in arms if arm["difference_from_gap"] is not None):
        found = arm["difference_from_gap"]
        pairs = f"{found['pairs']} pairs" if found["pairs"] > 1 else "1 pair"
        whole = found["pairs"] >= FEWEST
        axes.errorbar(
            found["mean"],
            f"{_name(arm)}, {pairs}",
            xerr=found["mean"] - interval(found)[0] if whole else None,
            marker="o",
            capsize=3,
            mfc=None if whole else "white",
            color=colours[arm["arm"]],
        )
    axes.axvline(0, color="grey", linestyle="--")
    axes.set(xlabel="test MAP@R ahead of GAP, points", title=f"95 % intervals of {FEWEST} pairs or more")
    axes.tick_params(axis="y", labelsize=8)
    axes.invert_yaxis()


def _name(arm: Mapping[str, Any]) -> str:
    return f"{arm['pooling']} {arm['variant']}".strip()


def draw_summary(value: dict[str, Any], path: Path) -> None:
    """Save where each loss stands with GAP, and where other layers bring it: ours, and the paper's (its Figure 6)."""
    arms = {(arm["loss"], arm["pooling"]): arm for arm in in_order(value["arms"]) if not arm["variant"]}
    losses = [*dict.fromkeys(loss for loss, _ in arms)]
    layers = [*dict.fromkeys(pooling for _, pooling in arms)]
    size = (4.0 + 2.2 * len(losses), 4.2)
    figure, sides = pyplot.subplots(1, 2, figsize=size, layout="constrained", sharey=True)
    for axes, side in zip(sides, ("ours", "paper"), strict=True):
        for (loss, layer), arm in arms.items():
            gap = _point(value["data"], arms.get((loss, "gap"), arm), None, side)
            point = _point(value["data"], arm, arms.get((loss, "gap")), side)
            if point is None:
                continue
            beside = [each for each in layers if (loss, each) in arms]
            place = losses.index(loss) + 0.11 * (beside.index(layer) - (len(beside) - 1) / 2)
            color = "black" if layer == "gap" else f"C{layers.index(layer)}"
            filled = None if point.whole else "white"
            axes.errorbar(place, point.mean, yerr=point.std, marker="o", capsize=3, color=color, mfc=filled)
            if gap is not None and layer != "gap":
                axes.plot([place] * 2, [gap.mean, point.mean], linestyle="--", color=color, zorder=0)
        axes.set_xticks(range(len(losses)), losses)
        axes.set_xlim(-0.6, len(losses) - 0.4)
    sides[0].set(ylabel="MAP@R of 128D models, %", title=f"ours: {value['data']}, {value['backbone']}")
    sides[1].set(title=f"paper: {value['data']}, BN-Inception")
    marks = [
        Line2D([], [], marker="o", linestyle="", color="black" if layer == "gap" else f"C{place}", label=layer)
        for place, layer in enumerate(layers)
    ]
    figure.legend(handles=marks, loc="outside right center", fontsize=8)
    save(figure, path)


class Point(NamedTuple):
    """A mark of the summary; ``whole`` where every fold has been trained."""

    mean: float
    std: float | None
    whole: bool


def _point(data: str, arm: dict[str, Any], gap: dict[str, Any] | None, side: str) -> Point | None:
    """Give MAP@R and its deviation over repeats, or the paper's; None where the paper has no such row.

    Where folds are missing, it is GAP's over all folds and the paired difference: folds differ by more than layers do.
    """
    if side == "paper":
        paper = paper_values(data, arm["loss"], arm["pooling"])
        around = paper_deviations(data, arm["loss"], arm["pooling"])
        return None if paper is None or around is None else Point(paper.map, around.map, True)
    joined = arm["joined"]
    if joined is not None:
        return Point(joined["map_128D"]["mean"], joined["map_128D"]["std"] if joined["repeats"] > 1 else None, True)
    base, found = (None, None) if gap is None else (_point(data, gap, None, side), arm["difference_from_gap"])
    if base is None or found is None or not base.whole:
        return Point(arm["map"]["mean"], None, False)
    return Point(base.mean + found["mean"], None, False)


def save(figure: Figure, path: Path) -> None:
    """Save without date and version of the library, so that the same figure is the same file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110, metadata={"Software": None})
    pyplot.close(figure)
