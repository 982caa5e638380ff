"""Draw the attribute histograms of every class, without and with the regularisation (Figure 5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path


def draw(histograms: Mapping[str, Sequence[Sequence[float]]], names: Sequence[str], path: Path) -> None:
    """Save one panel an arm: a row of shades a class, one column a prototype."""
    import matplotlib

    # Before pyplot, which would look for a screen.
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, grid = pyplot.subplots(
        1, len(histograms), figsize=(4.4 * len(histograms), 3.6), layout="constrained", squeeze=False
    )
    highest = max(max(row) for rows in histograms.values() for row in rows)
    for axes, (arm, rows) in zip(grid[0], histograms.items(), strict=True):
        shown = axes.imshow(rows, cmap="viridis", vmin=0, vmax=highest, aspect="auto")
        axes.set_yticks(range(len(names)), names, fontsize=8)
        axes.set_xticks(range(len(rows[0])), [str(number + 1) for number in range(len(rows[0]))], fontsize=8)
        axes.set_xlabel("prototype", fontsize=9)
        axes.set_title(f"{arm} regularisation", fontsize=10)
    figure.colorbar(shown, ax=list(grid[0]), shrink=0.8, label="share of the attributes")
    path.parent.mkdir(parents=True, exist_ok=True)
    # No date and no version of the library inside, so that the same figure is the same file.
    figure.savefig(path, dpi=110, metadata={"Software": None})
    pyplot.close(figure)
