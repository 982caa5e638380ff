"""Table 1 as the paper prints it, and what its rows are called here."""

from __future__ import annotations

from gspool.experiments.benchmark.paper import paper_values

MARKS = {"c2 gap": ("", ""), "c2 gsp without zsr": ("", "✓"), "c2 gsp mu 1": ("✓", ""), "c2 gsp": ("✓", "✓")}
NAMES = {"c2 gap": "neither", "c2 gsp without zsr": "GSP", "c2 gsp mu 1": "ZSR", "c2 gsp": "both"}
# MAP@R of 512D and 128D models, in percent, of each part alone; neither and both are rows of Table 2 too.
ALONE = {
    "sop": {
        "c2 gsp without zsr": (46.78, 42.66),
        "c2 gsp mu 1": (46.60, 42.55),
    },
    "inshop": {
        "c2 gsp without zsr": (59.46, 55.50),
        "c2 gsp mu 1": (59.38, 55.43),
    },
    "cub": {
        "c2 gsp without zsr": (26.25, 20.85),
        "c2 gsp mu 1": (26.49, 21.08),
    },
    "cars196": {
        "c2 gsp without zsr": (25.54, 17.88),
        "c2 gsp mu 1": (25.54, 17.67),
    },
}


def paper_figures(data: str, arm: str) -> tuple[float, float]:
    """Give the paper's MAP@R of 512D and of 128D models.

    Example:
        >>> paper_figures("cub", "c2 gap"), paper_figures("cub", "c2 gsp mu 1")
        ((25.95, 20.58), (26.49, 21.08))
    """
    if arm in ALONE[data]:
        return ALONE[data][arm]
    loss, pooling = arm.split()
    row = paper_values(data, loss, pooling)
    assert row is not None
    return row.map_joined, row.map


def paper_order(data: str) -> list[str]:
    """Name the four rows from the lowest MAP@R of 128D models to the highest.

    Example:
        >>> paper_order("cub"), paper_order("cars196")
        (['neither', 'GSP', 'ZSR', 'both'], ['neither', 'ZSR', 'GSP', 'both'])
    """
    return [NAMES[arm] for arm in sorted(NAMES, key=lambda arm: paper_figures(data, arm)[1])]
