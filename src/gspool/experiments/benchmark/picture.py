"""The benchmark drawn: how validation went, and how far each row is from average pooling."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib

# Before pyplot, which would look for a screen.
matplotlib.use("Agg")

from matplotlib import pyplot

from gspool.experiments.benchmark.paper import paper_deviations, paper_values
from gspool.experiments.benchmark.verdict import FEWEST
from gspool.experiments.paired import interval

if TYPE_CHECKING:
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
    """Save one row a loss: validation curves on the left, paired differences from GAP on the right."""
    losses = [*dict.fromkeys(arm["loss"] for arm in value["arms"])]
    figure, grid = pyplot.subplots(len(losses), 2, figsize=(12, 3.6 * len(losses)), layout="constrained", squeeze=False)
    for (curves, differences), loss in zip(grid, losses, strict=True):
        arms = [arm for arm in value["arms"] if arm["loss"] == loss]
        most = max(arm["runs"] for arm in arms)
        for place, arm in enumerate(arms):
            name = f"{arm['pooling']} {arm['variant']}".strip()
            own = [run for run in value["runs"] if run["asked"]["arm"] == arm["arm"] and run["found"]["curve"]]
            style = {"color": "black", "linewidth": 2} if name == "gap" else {"color": f"C{place % 10}"}
            # Folds differ by more than layers do: a curve of one fold beside the mean of four would mislead.
            if own and arm["runs"] == most:
                curves.plot(*validation_curve(own), label=name, **style)
            found = arm["difference_from_gap"]
            if found is not None:
                pairs = f"{found['pairs']} pairs" if found["pairs"] > 1 else "1 pair"
                around = found["mean"] - interval(found)[0] if found["pairs"] >= FEWEST else None
                label = f"{name}, {pairs}"
                differences.errorbar(found["mean"], label, xerr=around, marker="o", capsize=3, color=style["color"])
        curves.set(title=f"{value['data']}, {loss}, means of {most} runs", xlabel="step", ylabel="validation MAP@R, %")
        curves.legend(fontsize=8)
        differences.axvline(0, color="grey", linestyle="--")
        differences.set(xlabel="test MAP@R ahead of GAP, points", title=f"95 % intervals of {FEWEST} pairs or more")
        differences.tick_params(axis="y", labelsize=8)
        differences.invert_yaxis()
    save(figure, path)


def draw_summary(value: dict[str, Any], path: Path) -> None:
    """Save where each loss stands with GAP, and where other layers bring it: ours beside the paper (its Figure 6)."""
    arms = {(arm["loss"], arm["pooling"]): arm for arm in value["arms"] if not arm["variant"]}
    losses = [*dict.fromkeys(loss for loss, _ in arms)]
    figure, axes = pyplot.subplots(figsize=(2.2 + 1.6 * len(losses), 3.6), layout="constrained")
    colours = {layer: f"C{place}" for place, layer in enumerate(sorted({pooling for _, pooling in arms}))}
    named: set[str] = set()
    for place, loss in enumerate(losses):
        for side, shift in (("ours", -0.15), ("paper", 0.15)):
            layers = [pooling for each, pooling in arms if each == loss]
            points = {layer: _point(value["data"], arms[loss, layer], side) for layer in layers}
            known = {layer: point for layer, point in points.items() if point is not None}
            for layer, (mean, std) in known.items():
                color, word = colours[layer], f"{layer}, {side}"
                axes.errorbar(
                    place + shift,
                    mean,
                    yerr=std,
                    marker="o" if side == "ours" else "D",
                    mfc=color if side == "ours" else "white",
                    color=color,
                    capsize=3,
                    label=None if word in named else word,
                )
                named.add(word)
                if layer != "gap" and "gap" in known:
                    axes.plot([place + shift] * 2, [known["gap"][0], mean], linestyle="--", color="grey", zorder=0)
    axes.set_xticks(range(len(losses)), losses)
    axes.set(ylabel="MAP@R of 128D models, %", title=f"{value['data']}, {value['backbone']}; paper: BN-Inception")
    axes.set_xlim(-0.6, len(losses) - 0.4)
    axes.legend(fontsize=8)
    save(figure, path)


def _point(data: str, arm: dict[str, Any], side: str) -> tuple[float, float | None] | None:
    """Give MAP@R and its deviation over repeats, or the paper's."""
    if side == "paper":
        paper = paper_values(data, arm["loss"], arm["pooling"])
        around = paper_deviations(data, arm["loss"], arm["pooling"])
        return None if paper is None or around is None else (paper.map, around.map)
    joined = arm["joined"]
    if joined is None:
        return arm["map"]["mean"], None
    return joined["map_128D"]["mean"], joined["map_128D"]["std"] if joined["repeats"] > 1 else None


def save(figure: Figure, path: Path) -> None:
    """Save without date and version of the library, so that the same figure is the same file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110, metadata={"Software": None})
    pyplot.close(figure)
