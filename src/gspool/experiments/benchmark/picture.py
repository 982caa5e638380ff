"""The benchmark drawn: how validation went, and how far each row is from average pooling."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import matplotlib

# Before pyplot, which would look for a screen.
matplotlib.use("Agg")

from matplotlib import pyplot


def validation_curve(runs: list[dict[str, Any]]) -> tuple[list[int], list[float]]:
    """Average the validation MAP@R of runs over the steps that all of them reached.

    Example:
        >>> curves = ["100:20.00 200:22.00 300:21.00", "100:24.00 200:26.00"]
        >>> validation_curve([{"found": {"curve": curve}} for curve in curves])
        ([100, 200], [22.0, 24.0])
    """
    curves = [
        {int(step): float(value) for step, value in (point.split(":") for point in run["found"]["curve"].split())}
        for run in runs
    ]
    steps = sorted(set.intersection(*(set(curve) for curve in curves)))
    return steps, [math.fsum(curve[step] for curve in curves) / len(curves) for step in steps]


def draw(value: dict[str, Any], path: Path) -> None:
    """Save one row a loss: validation curves on the left, paired differences from GAP on the right (as in Figure 5)."""
    losses = [*dict.fromkeys(arm["loss"] for arm in value["arms"])]
    figure, grid = pyplot.subplots(
        len(losses), 2, figsize=(10, 3.4 * len(losses)), layout="constrained", squeeze=False, width_ratios=(3, 2)
    )
    for (curves, differences), loss in zip(grid, losses, strict=True):
        arms = [arm for arm in value["arms"] if arm["loss"] == loss]
        for place, arm in enumerate(arms):
            name = f"{arm['pooling']} {arm['variant']}".strip()
            own = [run for run in value["runs"] if run["asked"]["arm"] == arm["arm"] and run["found"]["curve"]]
            style = {"color": "black", "linewidth": 2} if name == "gap" else {"color": f"C{place % 10}"}
            if own:
                curves.plot(*validation_curve(own), label=name, **style)
            found = arm["difference_from_gap"]
            if found is not None:
                around = found["error"] if found["pairs"] > 1 else None
                differences.errorbar(found["mean"], name, xerr=around, marker="o", capsize=3, color=style["color"])
        curves.set(title=f"{value['data']}, {loss}", xlabel="step", ylabel="validation MAP@R, %")
        curves.legend(fontsize=8)
        differences.axvline(0, color="grey", linestyle="--")
        differences.set(xlabel="points of test MAP@R ahead of GAP, paired")
        differences.invert_yaxis()
    path.parent.mkdir(parents=True, exist_ok=True)
    # No date and no version of the library inside, so that the same figure is the same file.
    figure.savefig(path, dpi=110, metadata={"Software": None})
    pyplot.close(figure)
