"""Studies on validation classes drawn: MAP@R against mu, and against epsilon for every number of prototypes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gspool.experiments.benchmark.picture import pyplot, save
from gspool.experiments.tuning_text import seeds_told


def draw_mu(value: dict[str, Any], names: dict[float, str], path: Path) -> None:
    """Save validation MAP@R against mu, with the deviation where there are seeds to deviate, and average pooling."""
    by_arm = {arm["arm"]: arm for arm in value["arms"]}
    points = [(mu, by_arm[name]) for mu, name in names.items() if name in by_arm]
    figure, axes = pyplot.subplots(figsize=(5, 3.2), layout="constrained")
    axes.plot([mu for mu, _ in points], [arm["validation_map"] for _, arm in points], marker="o", label="GSP")
    several = [(mu, arm["validation_map"], arm["validation_std"]) for mu, arm in points if arm["runs"] > 1]
    if several:
        places, middle, around = zip(*several, strict=True)
        axes.errorbar(places, middle, yerr=around, fmt="none", ecolor="C0", capsize=3)
    _average_pooling(axes, by_arm.get("c2 gap"))
    title = f"{value['data']}, C2, {seeds_told([arm for _, arm in points])}"
    axes.set(xlabel="$\\mu$", ylabel="validation MAP@R, %", title=title)
    figure.legend(loc="outside lower center", ncols=2, fontsize=9)
    save(figure, path)


def draw_grid(
    value: dict[str, Any], names: dict[tuple[str, int, float], str], losses: Sequence[str], path: Path
) -> None:
    """Save validation MAP@R against epsilon, a line a number of prototypes, a panel a loss.

    Args:
        value: of the result.
        names: the arm of a loss, a number of prototypes and an epsilon.
        losses: which, at least one.
        path: where to.
    """
    by_arm = {arm["arm"]: arm for arm in value["arms"]}
    width = max(4.6 * len(losses), 5.2)
    figure, grid = pyplot.subplots(1, len(losses), figsize=(width, 3.7), layout="constrained", squeeze=False)
    for axes, loss in zip(grid[0], losses, strict=True):
        shown = []
        for count in sorted({count for each, count, _ in names if each == loss}):
            points = [
                (epsilon, by_arm[name])
                for (each, prototypes, epsilon), name in names.items()
                if (each, prototypes) == (loss, count) and name in by_arm
            ]
            if points:
                figures = [arm["validation_map"] for _, arm in points]
                axes.plot([epsilon for epsilon, _ in points], figures, marker="o", label=f"m = {count}")
            shown += [arm for _, arm in points]
        gap = by_arm.get(f"{loss} gap")
        _average_pooling(axes, gap)
        axes.set(xscale="log", xlabel="$\\varepsilon$", ylabel="validation MAP@R, %")
        ticks = sorted({epsilon for each, _, epsilon in names if each == loss})
        axes.set_xticks(ticks, [f"{epsilon:g}" for epsilon in ticks])
        axes.minorticks_off()
        axes.set_title(f"{value['data']}, {loss}, {_seeds(shown, gap)}", fontsize=10)
    # Below the panels, where no line runs; every line once.
    lines = {line.get_label(): line for axes in grid[0] for line in axes.get_lines()}
    figure.legend([*lines.values()], [*lines], loc="outside lower center", ncols=len(lines), fontsize=9)
    save(figure, path)


def _seeds(shown: Sequence[dict[str, Any]], gap: dict[str, Any] | None) -> str:
    """Say how many seeds a panel holds, and of average pooling where it has others."""
    told = seeds_told(shown)
    own = told if gap is None else seeds_told([gap])
    return told if own == told else f"{told}; GAP {own}"


def _average_pooling(axes: Any, arm: dict[str, Any] | None) -> None:
    if arm is not None:
        axes.axhline(arm["validation_map"], linestyle="--", color="grey", label="GAP")
