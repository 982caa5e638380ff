"""The collage's pooling table drawn: every layer with its deviation over seeds, the paper's figure beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gspool.experiments.collage.rows import ROWS
from gspool.experiments.collage.search_text import LOSS_NAMES

PICTURE = "collage_table.png"


def draw_bars(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Save a bar a layer and loss, the best on top; layers with GSP in them are coloured, diamonds are the paper's."""
    import matplotlib

    # Before pyplot, which would look for a screen.
    matplotlib.use("Agg")
    from matplotlib import pyplot

    found = {(row["row"], row["loss"]): row for row in rows}
    figure, grid = pyplot.subplots(1, len(LOSS_NAMES), figsize=(10, 5.4), layout="constrained", sharex=True)
    for axes, (loss, shown) in zip(grid, LOSS_NAMES.items(), strict=True):
        known = [(row, found[row.name, loss]) for row in ROWS if (row.name, loss) in found]
        known.sort(key=lambda pair: pair[1]["map@r"])
        for place, (row, ours) in enumerate(known):
            color = "C1" if "GSP" in row.name else "C0"
            axes.barh(place, ours["map@r"], xerr=ours["std"], color=color, capsize=2, height=0.7)
            if row.paper is not None:
                axes.plot(row.paper[loss], place, marker="D", markersize=4, color="black", linestyle="none")
        axes.set_yticks(range(len(known)), [row.name for row, _ in known], fontsize=8)
        axes.set(title=f"{shown}, frozen backbone", xlabel="MAP@R, %; diamonds: paper")
    path.parent.mkdir(parents=True, exist_ok=True)
    # No date and no version of the library inside, so that the same figure is the same file.
    figure.savefig(path, dpi=110, metadata={"Software": None})
    pyplot.close(figure)
