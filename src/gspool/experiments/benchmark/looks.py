"""Where GSP looks on average: what every place of the feature map weighs, relative to equal weights."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.cm import ScalarMappable
from matplotlib.colors import TwoSlopeNorm

from gspool.experiments.benchmark.picture import pyplot, save

MOST_IN_A_ROW = 4


def draw_looks(maps: Mapping[str, Sequence[float]], path: Path) -> None:
    """Save one square a map, all in the same colours: red weighs more than equal weights would, blue less."""
    columns = min(MOST_IN_A_ROW, len(maps))
    rows = math.ceil(len(maps) / columns)
    figure, grid = pyplot.subplots(
        rows, columns, figsize=(0.6 + 2.4 * columns, 2.5 * rows), layout="constrained", squeeze=False
    )
    # White is equal weights, whatever the range; a scale that hardly leaves them would paint noise.
    most = max(1.1, *(max(values) for values in maps.values()))
    colours = TwoSlopeNorm(1.0, vmin=0.0, vmax=most)
    for axes, name in zip(grid.flat, maps, strict=False):
        side = math.isqrt(len(maps[name]))
        squares = [maps[name][side * row : side * (row + 1)] for row in range(side)]
        axes.imshow(squares, cmap="RdBu_r", norm=colours)
        axes.set_title(name, fontsize=8)
    for axes in grid.flat:
        axes.set_axis_off()
    figure.colorbar(ScalarMappable(colours, "RdBu_r"), ax=grid, shrink=0.8, label="weight, relative to equal weights")
    save(figure, path)
