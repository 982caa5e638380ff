"""Table 1 as the paper prints it, and what its rows are called here."""

from __future__ import annotations

MARKS = {"c2 gap": ("", ""), "c2 gsp without zsr": ("", "✓"), "c2 gsp mu 1": ("✓", ""), "c2 gsp": ("✓", "✓")}
NAMES = {"c2 gap": "neither", "c2 gsp without zsr": "GSP", "c2 gsp mu 1": "ZSR", "c2 gsp": "both"}
# MAP@R of 512D and 128D models, in percent.
PAPER = {
    "sop": {
        "c2 gap": (45.85, 41.79),
        "c2 gsp without zsr": (46.78, 42.66),
        "c2 gsp mu 1": (46.60, 42.55),
        "c2 gsp": (46.81, 42.84),
    },
    "inshop": {
        "c2 gap": (59.07, 55.38),
        "c2 gsp without zsr": (59.46, 55.50),
        "c2 gsp mu 1": (59.38, 55.43),
        "c2 gsp": (60.01, 55.94),
    },
    "cub": {
        "c2 gap": (25.95, 20.58),
        "c2 gsp without zsr": (26.25, 20.85),
        "c2 gsp mu 1": (26.49, 21.08),
        "c2 gsp": (27.12, 21.52),
    },
    "cars196": {
        "c2 gap": (24.38, 17.02),
        "c2 gsp without zsr": (25.54, 17.88),
        "c2 gsp mu 1": (25.54, 17.67),
        "c2 gsp": (26.25, 18.31),
    },
}


def paper_order(data: str) -> list[str]:
    """Name the four rows from the lowest MAP@R of 128D models to the highest.

    Example:
        >>> paper_order("cub"), paper_order("cars196")
        (['neither', 'GSP', 'ZSR', 'both'], ['neither', 'ZSR', 'GSP', 'both'])
    """
    return [NAMES[arm] for arm in sorted(NAMES, key=lambda arm: PAPER[data][arm][1])]
