"""Studies on validation classes drawn: MAP@R against mu, and against epsilon for every number of prototypes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gspool.experiments.benchmark.picture import pyplot, save


def draw_mu(value: dict[str, Any], names: dict[float, str], path: Path) -> None:
    """Save validation MAP@R against mu, with the deviation over seeds, and average pooling as a line."""
    by_arm = {arm["arm"]: arm for arm in value["arms"]}
    points = [(mu, by_arm[name]) for mu, name in names.items() if name in by_arm]
    figure, axes = pyplot.subplots(figsize=(5, 3.2), layout="constrained")
    middle = [arm["validation_map"] for _, arm in points]
    around = [arm["validation_std"] for _, arm in points]
    axes.errorbar([mu for mu, _ in points], middle, yerr=around, marker="o", capsize=3, label="GSP")
    _average_pooling(axes, by_arm.get("c2 gap"))
    axes.set(xlabel="$\\mu$", ylabel="validation MAP@R, %", title=f"{value['data']}, C2")
    axes.legend()
    save(figure, path)


def draw_grid(
    value: dict[str, Any], names: dict[tuple[str, int, float], str], losses: Sequence[str], path: Path
) -> None:
    """Save validation MAP@R against epsilon, a line a number of prototypes, a panel a loss.

    Args:
        value: of the result.
        names: the arm of a loss, a number of prototypes and an epsilon.
        losses: which.
        path: where to.
    """
    by_arm = {arm["arm"]: arm for arm in value["arms"]}
    figure, panels = pyplot.subplots(1, len(losses), figsize=(4.6 * len(losses), 3.4), layout="constrained")
    for axes, loss in zip([panels] if len(losses) == 1 else panels, losses, strict=True):
        for count in sorted({count for each, count, _ in names if each == loss}):
            points = [
                (epsilon, by_arm[name]["validation_map"])
                for (each, prototypes, epsilon), name in names.items()
                if (each, prototypes) == (loss, count) and name in by_arm
            ]
            if points:
                axes.plot(*zip(*points, strict=True), marker="o", label=f"m = {count}")
        _average_pooling(axes, by_arm.get(f"{loss} gap"))
        axes.set(xscale="log", xlabel="$\\varepsilon$", ylabel="validation MAP@R, %", title=f"{value['data']}, {loss}")
        axes.legend(fontsize=8)
    save(figure, path)


def _average_pooling(axes: Any, arm: dict[str, Any] | None) -> None:
    if arm is not None:
        axes.axhline(arm["validation_map"], linestyle="--", color="grey", label="GAP")
