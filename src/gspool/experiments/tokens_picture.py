"""Draw the geometry of the synthetic study: samples, hulls and tokens in the plane."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any


def draw(outcomes: Mapping[str, Mapping[str, Any]], path: Path) -> None:
    """Save one panel a layer: pooled samples with the hull of every class, and the tokens as crosses."""
    import matplotlib

    # Before pyplot, which would look for a screen.
    matplotlib.use("Agg")
    import numpy as np
    from matplotlib import pyplot
    from scipy.spatial import ConvexHull

    figure, grid = pyplot.subplots(1, len(outcomes), figsize=(4.2 * len(outcomes), 4.2), layout="constrained")
    colours = [pyplot.get_cmap("tab20")(number) for number in range(20)]
    for axes, (layer, outcome) in zip(np.atleast_1d(grid), outcomes.items(), strict=True):
        pooled, labels, tokens = (np.array(outcome[name]) for name in ("pooled", "labels", "tokens"))
        classes = np.unique(labels)
        each = (len(tokens) - 4) // len(classes)
        for number in classes:
            own, colour = pooled[labels == number], colours[number % len(colours)]
            corners = own[ConvexHull(own).vertices]
            axes.fill(*corners.T, color=colour, alpha=0.25, linewidth=0)
            axes.plot(*own.T, ".", color=colour, markersize=3)
            axes.plot(*tokens[number * each : (number + 1) * each].T, "x", color=colour, markersize=5)
        axes.plot(*tokens[-4:].T, "x", color="black", markersize=7, markeredgewidth=2)
        axes.set_title(f"{layer.upper()}: MAP@R {100 * outcome['map@r']:.1f}", fontsize=11)
        axes.set(xticks=[], yticks=[], aspect="equal")
    path.parent.mkdir(parents=True, exist_ok=True)
    # No date and no version of the library inside, so that the same figure is the same file.
    figure.savefig(path, dpi=110, metadata={"Software": None})
    pyplot.close(figure)
