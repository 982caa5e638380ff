"""The collage's pooling table drawn: every layer with its deviation over seeds, the paper's figure beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gspool.experiments.collage.rows import ROWS
from gspool.experiments.collage.search_text import LOSS_NAMES

PICTURE = "collage_table.png"
WITH_GSP, OTHERS = "C1", "C0"


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
            color = WITH_GSP if "GSP" in row.name else OTHERS
            axes.barh(place, ours["map@r"], xerr=ours["std"], color=color, capsize=2, height=0.7)
            if row.paper is not None:
                axes.plot(row.paper[loss], place, marker="D", markersize=4, color="black", linestyle="none")
        axes.set_yticks(range(len(known)), [row.name for row, _ in known], fontsize=8)
        axes.set(title=f"{shown}, frozen backbone", xlabel="MAP@R, %")
    figure.legend(handles=_legend(seeds_of(rows)), loc="outside lower center", ncols=3, frameon=False, fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    # No date and no version of the library inside, so that the same figure is the same file.
    figure.savefig(path, dpi=110, metadata={"Software": None})
    pyplot.close(figure)


def bars_caption(rows: Sequence[Mapping[str, Any]]) -> str:
    """Say below the picture what it shows."""
    return (
        f"Bars are means, lines their standard deviations ({seeds_of(rows)}), diamonds the paper's figures; orange are "
        "layers with GSP in them. Frozen backbone, the paper's settings."
    )


def seeds_of(rows: Sequence[Mapping[str, Any]]) -> str:
    """Say how many seeds stand behind the rows, or between which numbers it lies.

    Example:
        >>> seeds_of([{"by_seed": {"0": 1.0}}, {"by_seed": {"0": 1.0, "1": 2.0}}])
        'n = 1 to 2 seeds'
    """
    counts = sorted({len(row["by_seed"]) for row in rows})
    return f"n = {' to '.join(map(str, dict.fromkeys([counts[0], counts[-1]])))} seeds"


def _legend(seeds: str) -> list[Any]:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    return [
        Patch(color=WITH_GSP, label=f"with GSP in it; mean ± std, {seeds}"),
        Patch(color=OTHERS, label=f"other layers; mean ± std, {seeds}"),
        Line2D([], [], marker="D", markersize=4, color="black", linestyle="none", label="the paper's figure"),
    ]
