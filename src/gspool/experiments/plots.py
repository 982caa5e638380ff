"""Drawing that experiments share, in one style: forest plots, bars, curves, maps over pictures.

matplotlib is imported when something is drawn. The same figure is the same file: no date, no version inside.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from gspool.evaluation.statistics import interval
from gspool.provenance import read_result

if TYPE_CHECKING:
    from jaxtyping import Int64
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from torch import Tensor

    from gspool.experiments.experiment import Experiment

# Fewer pairs have no interval worth drawing; their mark is open.
FEWEST_PAIRS = 3


def draw_plots(experiment: Experiment, results: Path, images: Path, others: Sequence[str] = ()) -> list[Path]:
    """Draw the figures of an experiment whose results are there, and return the paths of those that exist then.

    ``others`` are results of other data or networks; their figures have names of their own. Where matplotlib is not
    installed, nothing is drawn and a line says so.
    """
    there = [file for file in (*experiment.files, *others) if (results / f"{file}.json").is_file()]
    if experiment.plots and there and find_spec("matplotlib") is None:
        print("matplotlib is not installed; figures skipped, `gspool report --plots` draws them", flush=True)
        return []
    drawn, first = [], experiment.files[0]
    for file in there:
        record = read_result(results / f"{file}.json")
        for name, draw in experiment.made_from(experiment.plots, file, record).items():
            own = name if file in experiment.files else name.replace(first, file) if first in name else file
            draw(record, images / f"{own}.png")
            drawn.append(images / f"{own}.png")
    return [path for path in drawn if path.is_file()]


def subplots(
    rows: int = 1, columns: int = 1, width: float = 5.0, height: float = 3.2, **more: Any
) -> tuple[Figure, Any]:
    """Make a figure and its axes, an array [rows, columns], without a screen."""
    import matplotlib

    # Before pyplot, which would look for a screen.
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot.subplots(rows, columns, figsize=(width, height), layout="constrained", squeeze=False, **more)


def save(figure: Figure, path: Path, dpi: int = 110) -> None:
    """Write a figure and close it."""
    from matplotlib import pyplot

    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=dpi, metadata={"Software": None})
    pyplot.close(figure)


class Line(NamedTuple):
    """A line of a forest plot: a mean difference (`gspool.evaluation.statistics`) and a value to compare it with."""

    label: str
    found: Mapping[str, Any]
    other: float | None = None


def forest(
    panels: Mapping[str, Sequence[Line]], path: Path, *, xlabel: str, ours: str = "ours", other: str = "paper"
) -> None:
    """Draw differences with their 95 % intervals, one panel each: open marks for few pairs, diamonds for ``other``."""
    from matplotlib.lines import Line2D

    most = max(len(lines) for lines in panels.values())
    figure, grid = subplots(1, len(panels), 6.2 * len(panels), 1.5 + 0.27 * most)
    for axes, (title, lines) in zip(grid[0], panels.items(), strict=True):
        for place, line in enumerate(lines):
            whole = line.found["pairs"] >= FEWEST_PAIRS
            around = line.found["mean"] - interval(line.found)[0] if whole else None
            fill = None if whole else "white"
            axes.errorbar(line.found["mean"], place, xerr=around, marker="o", capsize=3, color="C0", mfc=fill)
            if line.other is not None:
                axes.plot(line.other, place, marker="D", markersize=5, color="C1", linestyle="")
        axes.axvline(0, color="grey", linestyle="--", zorder=0)
        axes.set_yticks(range(len(lines)), [line.label for line in lines], fontsize=8)
        axes.set(title=title, xlabel=xlabel)
        axes.invert_yaxis()
    marks = [Line2D([], [], marker="o", color="C0", label=ours)]
    if any(line.other is not None for lines in panels.values() for line in lines):
        marks.append(Line2D([], [], marker="D", color="C1", linestyle="", label=other))
    legend_below(figure, marks)
    save(figure, path)


def bars(
    axes: Axes,
    labels: Sequence[str],
    means: Sequence[float],
    stds: Sequence[float | None],
    colors: Sequence[str],
    others: Sequence[float | None] = (),
) -> None:
    """Draw horizontal bars with deviations, the first on top, diamonds for ``others`` (the paper's values)."""
    places = range(len(labels))
    around = [std or 0.0 for std in stds]
    axes.barh(places, means, xerr=around, color=colors, error_kw={"capsize": 2, "linewidth": 1})
    for place, other in zip(places, others, strict=False):
        if other is not None:
            axes.plot(other, place, marker="D", markersize=4, color="black", linestyle="")
    axes.set_yticks(places, labels, fontsize=8)
    axes.invert_yaxis()


def curve(
    axes: Axes, x: Sequence[float], means: Sequence[float], stds: Sequence[float | None] = (), **style: Any
) -> None:
    """Draw a line with marks, and deviations where there are some."""
    (line,) = axes.plot(x, means, marker=style.pop("marker", "o"), **style)
    known = [(place, mean, std) for place, mean, std in zip(x, means, stds, strict=False) if std is not None]
    if known:
        places, middles, around = zip(*known, strict=True)
        axes.errorbar(places, middles, yerr=around, fmt="none", ecolor=line.get_color(), capsize=3)


def shown_places(labels: Int64[Tensor, " N"], count: int) -> Int64[Tensor, " P"]:
    """Return the first picture of evenly spaced classes, at most ``count``: not picked."""
    import torch

    firsts = [int((labels == label).nonzero()[0]) for label in labels.unique().tolist()]
    return torch.tensor(firsts[:: max(len(firsts) // count, 1)][:count])


def overlay(axes: Axes, picture: Any, heat: Any, title: str = "") -> None:
    """Show a picture [H, W, 3], and over it a heat map [h, w] scaled to its largest value; None for no map."""
    import torch

    axes.imshow(picture)
    if heat is not None:
        size = tuple(picture.shape[:2])
        spread = torch.nn.functional.interpolate(torch.as_tensor(heat)[None, None], size, mode="bicubic")[0, 0]
        axes.imshow((spread.clamp_min(0) / spread.max()).numpy(), cmap="inferno", alpha=0.7, vmin=0, vmax=1)
    axes.set_title(title, fontsize=9)


def draw_maps(maps: Mapping[str, Sequence[float]], path: Path, columns: int = 4, side: float = 2.4) -> None:
    """Draw square maps in one colour scale: white weighs as equal weights would, red more, blue less."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import TwoSlopeNorm

    columns = min(columns, len(maps))
    rows = math.ceil(len(maps) / columns)
    figure, grid = subplots(rows, columns, 0.6 + side * columns, (side + 0.1) * rows)
    # A scale that hardly leaves 1 would paint noise.
    scale = TwoSlopeNorm(1.0, vmin=0.0, vmax=max(1.1, *(max(values) for values in maps.values())))
    for axes, (name, values) in zip(grid.flat, maps.items(), strict=False):
        wide = math.isqrt(len(values))
        axes.imshow([values[wide * row : wide * (row + 1)] for row in range(wide)], cmap="RdBu_r", norm=scale)
        axes.set_title(name, fontsize=min(8, 3.7 * side))
    for axes in grid.flat:
        axes.set_axis_off()
    figure.colorbar(ScalarMappable(scale, "RdBu_r"), ax=grid, shrink=0.8, label="weight, relative to equal weights")
    save(figure, path)


def legend_below(figure: Figure, handles: Sequence[Any] = (), columns: int = 0) -> None:
    """Put one legend below all panels, where it hides no mark; every label once."""
    marks = list(handles) or [handle for axes in figure.get_axes() for handle in axes.get_legend_handles_labels()[0]]
    once = {str(mark.get_label()): mark for mark in marks}
    if once:
        ncols = columns or min(len(once), 5)
        figure.legend([*once.values()], [*once], loc="outside lower center", ncols=ncols, fontsize=8)
