"""What the tuning protocol holds out and measures, in words, for the studies that use it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gspool.evaluation import PROTOCOLS

_NUMBERS = {4: "four", 5: "five", 6: "six"}


def protocol_told(value: dict[str, Any]) -> str:
    """Say what is held out, what is measured, and what the paper leaves open.

    Example:
        >>> protocol_told({"data": "cub", "protocol": "tuning"})[:60]
        'The tuning protocol (Supp., Training Splits): the training c'
    """
    splits = PROTOCOLS[value["protocol"]].splits
    return (
        f"The tuning protocol (Supp., Training Splits): the training classes of {value['data']} are cut into "
        f"{_NUMBERS.get(splits, str(splits))} parts, and the first is held out. A model learns from the others; it is "
        "measured by MAP@R among the images of the held-out classes, at the step where that is highest. The test "
        "classes play no part. Every layer draws an embedding of its own. The paper averages three repeats, and does "
        "not say which part it held out."
    )


def seeds_told(arms: Sequence[dict[str, Any]]) -> str:
    """Say how many seeds arms have been trained with.

    Example:
        >>> seeds_told([{"runs": 1}]), seeds_told([{"runs": 3}]), seeds_told([{"runs": 3}, {"runs": 2}])
        ('one seed', '3 seeds', '2 to 3 seeds')
    """
    few, most = (pick((arm["runs"] for arm in arms), default=0) for pick in (min, max))
    if few != most:
        return f"{few} to {most} seeds"
    return "one seed" if most == 1 else f"{most} seeds"
