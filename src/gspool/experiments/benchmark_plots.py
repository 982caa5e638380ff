"""Figures of the benchmark: Figure 6 beside ours, differences from GAP, validation curves, where layers look."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from gspool.executor.run_store import Run
from gspool.experiments.experiment import Record
from gspool.experiments.plots import FEWEST_PAIRS, Line, draw_maps, forest, legend_below, save, subplots
from gspool.experiments.retrieval_figures import figures_of, in_order, kind_of, place, runs_of
from gspool.experiments.retrieval_paper import paper_gain, paper_values
from gspool.experiments.retrieval_training import COMPARED, POOLINGS

# Between two layers of a loss; all of a loss take less than the distance of two losses.
APART = 0.8 / len(POOLINGS)
MOST_MAPS, MOST_CURVES = 8, 8
# Rows of earlier ways of training, which nothing makes any more: GAP with an embedding of its own draw, and the plain
# step before the one with kernels of its own, which made all other rows.
EARLIER_ROWS = ("drawn apart", "earlier step")
# Points of MAP@R below the best that curves show.
SHOWN_POINTS = 4.0


def rows_of(record: Record) -> list[dict[str, Any]]:
    """Return all rows but those of earlier ways of training."""
    return [row for row in in_order(figures_of(record["value"])) if not row["setting"].endswith(EARLIER_ROWS)]


def label(row: Mapping[str, Any]) -> str:
    """Name a row within its loss."""
    return f"{row['pooling']} {row['setting']}".strip()


def draw_differences(shown: str, record: Record, path: Path) -> None:
    """Draw how far rows are ahead of GAP: GSP with every loss, other layers, or other settings of GSP.

    Beside them are the paper's gains, or for settings our own on the validation classes, which choose among them.
    """
    panels: dict[str, list[Line]] = {}
    for row in rows_of(record):
        layer, found, watched = row["pooling"], row["difference_from_gap"], row["validation_difference"]
        if kind_of(row) != shown or layer == "gap" or not found:
            continue
        panel, name = ("GSP instead of GAP", row["loss"]) if shown == "losses" else (row["loss"], label(row))
        gain = paper_gain(record["value"]["data"], row["loss"], layer, row["setting"])
        other = (watched and watched["mean"]) if shown == "settings" else gain
        pairs = f"{found['pairs']} pair{'s' * (found['pairs'] > 1)}"
        panels.setdefault(panel, []).append(Line(f"{name}, {pairs}", found, other))
    if panels:
        other_name = "ours, validation classes" if shown == "settings" else "paper"
        xlabel = "MAP@R − that of GAP, points"
        forest(panels, path, xlabel=xlabel, ours="ours, test classes", other=other_name)


def validation_curve(runs: Sequence[Run]) -> tuple[list[int], list[float]]:
    """Average the validation MAP@R of runs over the steps that all of them reached.

    Example:
        >>> curves = ["100:20.00 200:22.00 300:21.00", "100:24.00 200:26.00"]
        >>> validation_curve([Run({}, {"curve": curve}, {}) for curve in curves])
        ([100, 200], [22.0, 24.0])
    """
    curves = [
        {int(step): float(value) for step, value in (point.split(":") for point in run.found["curve"].split())}
        for run in runs
    ]
    steps = sorted(set.intersection(*(set(curve) for curve in curves)))
    return steps, [math.fsum(curve[step] for curve in curves) / len(curves) for step in steps]


def shared_places(made: Mapping[str, Collection[tuple[int, int]]], loss: str) -> set[tuple[int, int]]:
    """Return the folds and seeds that GAP and GSP share; where these are few, those of the variant with most.

    Folds differ by more than layers do: a curve of one fold beside the mean of four would mislead.

    Example:
        >>> gap = [(0, seed) for seed in range(5)]
        >>> len(shared_places({"c2 gap": gap, "c2 gsp": gap[:3]}, "c2"))
        3
    """
    shared = {*made.get(f"{loss} gap", ())} & {*made.get(f"{loss} gsp", ())}
    return shared if len(shared) >= FEWEST_PAIRS else max(({*places} for places in made.values()), key=len)


def draw_curves(record: Record, path: Path) -> None:
    """Draw validation MAP@R against the step, one panel a loss, over the folds and seeds that GAP and GSP share."""
    runs = {
        name: {place(run): run for run in own}
        for name, own in runs_of(record["value"]).items()
        if own[0].found["curve"]
    }
    rows = [row for row in rows_of(record) if row["variant"] in runs]
    losses = [*dict.fromkeys(row["loss"] for row in rows)]
    if not losses:
        return
    columns = min(3, len(losses))
    lines = math.ceil(len(losses) / columns)
    figure, grid = subplots(lines, columns, 0.4 + 4.2 * columns, 3.6 * lines)
    for axes in grid.flat[len(losses) :]:
        axes.set_axis_off()
    for axes, loss in zip(grid.flat, losses, strict=False):
        own = [row for row in rows if row["loss"] == loss]
        shared = shared_places({row["variant"]: runs[row["variant"]] for row in own}, loss)
        for row in [row for row in own if shared <= {*runs[row["variant"]]}][:MOST_CURVES]:
            curve = validation_curve([runs[row["variant"]][each] for each in sorted(shared)])
            axes.plot(*curve, label=label(row), color="black" if label(row) == "gap" else None)
        axes.set(
            title=f"{loss}, {len(shared)} run{'s' * (len(shared) > 1)} each",
            xlabel="step",
            ylabel="validation MAP@R, %",
        )
        # The first steps are far below, and would hide what the lines differ by.
        axes.set_ylim(bottom=max(max(line.get_ydata()) for line in axes.get_lines()) - SHOWN_POINTS)
        axes.legend(fontsize=8, loc="lower right")
    save(figure, path)


class Point(NamedTuple):
    """A mark of the summary; ``whole`` where every fold has been trained."""

    mean: float
    std: float | None
    whole: bool


def summary_point(row: Mapping[str, Any], gap: Mapping[str, Any] | None) -> Point:
    """Return MAP@R of single models and its deviation over repeats.

    Where a row lacks folds or repeats that GAP has, it is GAP's figure plus the paired difference: folds and repeats
    differ by more than layers do.
    """
    whole = row["separate"]
    if whole is not None and (gap is None or row["runs"] == gap["runs"]):
        return Point(whole["map"]["mean"], whole["map"]["std"] if whole["repeats"] > 1 else None, True)
    found = row["difference_from_gap"]
    if gap is None or found is None or gap["separate"] is None:
        return Point(row["map"]["mean"], None, False)
    return Point(gap["separate"]["map"]["mean"] + found["mean"], None, whole is not None)


def draw_summary(record: Record, path: Path) -> None:
    """Draw Figure 6: MAP@R by loss and layer of Table 2, ours beside the paper's; dashed lines start at GAP."""
    from matplotlib.lines import Line2D

    value = record["value"]
    rows = {
        (row["loss"], row["pooling"]): row
        for row in rows_of(record)
        if not row["setting"] and row["pooling"] in POOLINGS
    }
    losses, layers = ([*dict.fromkeys(key[part] for key in rows)] for part in (0, 1))
    if not rows:
        return
    colors = {layer: "black" if layer == "gap" else f"C{number}" for number, layer in enumerate(layers)}
    figure, grid = subplots(1, 2, 3.0 + 1.6 * len(losses), 4.0, sharey=True)
    ours = {
        key: summary_point(row, None if key[1] == "gap" else rows.get((key[0], "gap"))) for key, row in rows.items()
    }
    known = {key: paper_values(value["data"], *key) for key in rows}
    paper = {key: Point(found.map, found.std, True) for key, found in known.items() if found is not None}
    for axes, points in zip(grid[0], (ours, paper), strict=True):
        for (loss, layer), point in points.items():
            beside = [each for each in layers if (loss, each) in rows]
            at = losses.index(loss) + APART * (beside.index(layer) - (len(beside) - 1) / 2)
            fill = None if point.whole else "white"
            axes.errorbar(at, point.mean, yerr=point.std, marker="o", capsize=3, color=colors[layer], mfc=fill)
            if layer != "gap" and (loss, "gap") in points:
                start = points[loss, "gap"].mean
                axes.plot([at, at], [start, point.mean], linestyle="--", color=colors[layer], zorder=0)
        axes.set_xticks(range(len(losses)), losses)
        axes.set_xlim(-0.6, len(losses) - 0.4)
    grid[0][0].set(ylabel="MAP@R of 128D models, %", title=f"ours: {value['data']}, {value['backbone']}")
    grid[0][1].set(title=f"paper: {value['data']}, BN-Inception")
    marks = [Line2D([], [], marker="o", linestyle="", color=colors[layer], label=layer) for layer in layers]
    legend_below(figure, marks, len(marks))
    save(figure, path)


def shown_maps(rows: Sequence[Mapping[str, Any]], most: int = MOST_MAPS) -> dict[str, list[float]]:
    """Return mean maps by variant: GSP with C2 and ProxyNCA++ first, then those with the highest weights.

    Example:
        >>> kept = [("c2 delf", [0.5, 1.5]), ("c2 gsp", [0.9, 1.1]), ("c2 gmp", None), ("pnca delf", [0.4, 1.6])]
        >>> rows = [{"variant": name, "pooling": name.split()[1], "mean_weights": weights} for name, weights in kept]
        >>> list(shown_maps(rows)), list(shown_maps(rows, 2))
        (['c2 gsp', 'pnca delf', 'c2 delf'], ['c2 gsp', 'pnca delf'])
    """
    maps = {row["variant"]: row["mean_weights"] for row in rows if row["pooling"] != "gap" and row["mean_weights"]}
    first = [f"{loss} gsp" for loss in COMPARED["fair"][0]]
    ranked = sorted(maps, key=lambda name: (first.index(name) if name in first else len(first), -max(maps[name])))
    return {name: maps[name] for name in ranked[:most]}


def draw_looks(record: Record, path: Path) -> None:
    """Draw the mean weight of every place of the map on the test images, relative to equal weights."""
    maps = shown_maps(figures_of(record["value"]))
    if maps:
        draw_maps(maps, path)


PLOTS: dict[str, Callable[[Record, Path], None]] = {
    "": draw_curves,
    "_summary": draw_summary,
    "_losses": partial(draw_differences, "losses"),
    "_layers": partial(draw_differences, "layers"),
    "_settings": partial(draw_differences, "settings"),
    "_looks": draw_looks,
}
