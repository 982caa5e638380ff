"""What GSP selects on CUB before any training, as the report shows it.

The report reads this and not the measurement, which is a program: one that its own package had imported would be loaded
a second time, and the report may stand where there is no matplotlib.
"""

from __future__ import annotations

from typing import Any

from gspool.experiments.benchmark.tables import table
from gspool.experiments.pictured import pictured

FILE = "cub_selection"
# How many training images are looked at.
IMAGES = 192
PICTURE = pictured(
    f"{FILE}.png",
    "Mean weight of every place of the map, for both starts and four epsilon",
    f"What every place of the map weighs on average over {IMAGES - 2 * IMAGES // 3} training images that prototypes "
    "were not chosen on, before any training. Above: prototypes from pooled vectors; below: from local features.",
)


def rendered(value: dict[str, Any]) -> str:
    """Write the table, and how the length of features goes with their place."""
    shown = table(
        [
            {
                "prototypes start from": row["start"],
                "epsilon": f"{row['epsilon']:g}",
                "entropy": f"{row['entropy']:.4f}",
                "correlation with feature length": f"{row['correlation_with_length']:+.2f}",
                "mean length of what is pooled": f"{row['length_of_what_is_pooled']:.2f}",
            }
            for row in value["rows"]
        ]
    )
    told = f"The length itself goes with nearness to the middle of the picture: {value['length_with_nearness']:+.2f}."
    return f"{shown}\n\n{told}\n\n{PICTURE}"
