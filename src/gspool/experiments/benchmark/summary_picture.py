"""The paper's Figure 6: where each loss stands with GAP, and where other layers bring it, ours beside the paper's."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.lines import Line2D

from gspool.experiments.benchmark.arms import POOLINGS
from gspool.experiments.benchmark.figures import arms_of
from gspool.experiments.benchmark.paper import paper_deviations, paper_values
from gspool.experiments.benchmark.picture import pyplot, save
from gspool.experiments.benchmark.tables import in_order

# Between two layers of a loss; all of a loss take less than the distance of two losses.
APART = 0.8 / len(POOLINGS)


def draw_summary(value: dict[str, Any], path: Path) -> None:
    """Save MAP@R by loss and layer, for the layers of Table 2."""
    own = [arm for arm in in_order(arms_of(value)) if not arm["variant"] and arm["pooling"] in POOLINGS]
    arms = {(arm["loss"], arm["pooling"]): arm for arm in own}
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
            place = losses.index(loss) + APART * (beside.index(layer) - (len(beside) - 1) / 2)
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

    Where an arm lacks folds or repeats that GAP has, it is GAP's figure and the paired difference: folds and repeats
    differ by more than layers do.
    """
    if side == "paper":
        paper = paper_values(data, arm["loss"], arm["pooling"])
        around = paper_deviations(data, arm["loss"], arm["pooling"])
        return None if paper is None or around is None else Point(paper.map, around.map, True)
    whole = arm.get("separate")
    if whole is not None and (gap is None or arm["runs"] == gap["runs"]):
        return Point(whole["map"]["mean"], whole["map"]["std"] if whole["repeats"] > 1 else None, True)
    base, found = (None, None) if gap is None else (_point(data, gap, None, side), arm["difference_from_gap"])
    if base is None or found is None or not base.whole:
        return Point(arm["map"]["mean"], None, False)
    return Point(base.mean + found["mean"], None, whole is not None)
