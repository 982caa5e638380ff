"""What the paper leaves open about the collage study, how we chose, and by which measure of our own we judge."""

from __future__ import annotations

from statistics import fmean

from gspool.experiments.collage.comparison import Rows, figure_of
from gspool.experiments.collage.rows import FINE_TUNED, find_row
from gspool.experiments.collage.search_text import LOSS_NAMES
from gspool.experiments.collage.verdict import OURS, POINTS, TIMES

BACKBONES_OF_THE_PAPER = (
    "Which ResNet20 the paper has is open: it cites the pre-activation network and speaks of 3 stages of 3 blocks. Our "
    "post-activation one has these blocks and stands in all tables but one; the pre-activation one, 3 stages of 2 "
    "bottlenecks, is that of the authors' code, and stands beside it among the best settings."
)


def mean_distance(rows: Rows, other: Rows) -> float | None:
    """Give the mean distance of a table from the paper, in points, over the cells that the other table has too.

    None where the two tables have no cell in common that the paper has.

    Example:
        >>> row = {"row": "GAP", "loss": "c2", "map@r": 7.09, "std": None, "by_seed": {"0": 7.09}}
        >>> round(mean_distance([row], [{**row, "map@r": 16.0}]), 2)
        1.0
    """
    distances = []
    for name in FINE_TUNED:
        paper = find_row(name).paper
        for loss in LOSS_NAMES:
            here, there = figure_of(rows, name, loss), figure_of(other, name, loss)
            if paper is not None and here is not None and there is not None:
                distances.append(abs(here.mean - paper[loss]))
    return fmean(distances) if distances else None


def backbone_text(frozen: Rows, fine_tuned: Rows) -> str:
    """Say that the paper does not tell whether the backbone learns, which table is judged, and why that one."""
    said = (
        'The paper says that the backbone is "pretrained on Cifar100", and does not say whether it learns on. We ran '
        "both, and judge the table of the frozen one"
    )
    still, learning = mean_distance(frozen, fine_tuned), mean_distance(fine_tuned, frozen)
    if still is None or learning is None:
        return f"{said}; which of them is nearer to the paper cannot be told until both have been run."
    measured = f"{still:.1f} points from them on average, with a backbone that learns {learning:.1f}"
    shared = "over the layers that both tables and the paper have"
    if still < learning:
        return f"{said}, because the paper's figures lie nearer to it: {measured}, {shared}."
    return f"{said}, although the paper's figures do not lie nearer to it: {measured}, {shared}."


def measure_text() -> str:
    """Say that the thresholds of the verdict are ours."""
    return (
        f"What counts as the promise kept is our measure, not the paper's: {OURS} more than {TIMES:g} times GAP, at "
        f"most {POINTS:g} points below the paper's figure, and first of its size."
    )
