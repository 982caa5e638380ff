"""Differences from average pooling drawn, with their intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.lines import Line2D

from gspool.experiments.benchmark.forest import Line
from gspool.experiments.benchmark.picture import pyplot, save
from gspool.experiments.benchmark.verdict import FEWEST
from gspool.experiments.paired import interval


def draw_forest(panels: Mapping[str, Sequence[Line]], beside: str, path: Path) -> None:
    """Save a panel each: means with their intervals, open where pairs are too few for one, and diamonds beside them."""
    most = max(len(lines) for lines in panels.values())
    size = (6.2 * len(panels), 1.5 + 0.27 * most)
    figure, sides = pyplot.subplots(1, len(panels), figsize=size, layout="constrained", squeeze=False)
    for axes, (title, lines) in zip(sides.flat, panels.items(), strict=True):
        for place, line in enumerate(lines):
            whole = line.found["pairs"] >= FEWEST
            around = line.found["mean"] - interval(dict(line.found))[0] if whole else None
            filled = None if whole else "white"
            axes.errorbar(line.found["mean"], place, xerr=around, marker="o", capsize=3, color="C0", mfc=filled)
            if line.beside is not None:
                axes.plot(line.beside, place, marker="D", markersize=5, color="C1", linestyle="")
        axes.axvline(0, color="grey", linestyle="--", zorder=0)
        axes.set_yticks(range(len(lines)), [line.label for line in lines], fontsize=8)
        axes.set(title=title, xlabel="MAP@R ahead of GAP, points")
        axes.invert_yaxis()
    marks = [
        Line2D([], [], marker="o", color="C0", label="ours, test classes"),
        Line2D([], [], marker="D", color="C1", linestyle="", label=beside),
    ]
    # Under the panels, where it hides no mark.
    figure.legend(handles=marks, loc="outside lower center", ncols=2, fontsize=8)
    save(figure, path)
