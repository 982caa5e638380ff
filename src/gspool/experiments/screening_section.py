"""The section about the screening: the factorial beside the paper's figures, its effects, the grids."""

from __future__ import annotations

from typing import Any

from gspool.experiments import screening_design as design
from gspool.experiments.benchmark.tables import number, table
from gspool.experiments.pictured import pictured
from gspool.experiments.screening_effects import told
from gspool.experiments.tuning_text import protocol_told, seeds_told


def rendered(value: dict[str, Any]) -> str:
    """Write the factorial with the paper's values beside ours, its main effects, and the grids that are there."""
    found = {arm["arm"]: arm for arm in value["arms"]}
    grids = [grid_table(found, loss) for loss in whole_grids(value)]
    return "\n\n".join(part for part in (factorial_table(found), told(value), *grids) if part)


def written(value: dict[str, Any]) -> str:
    """Write what was measured, the tables, and the picture where there is enough of a grid to draw."""
    selects = [arm for arm in value["arms"] if arm["pooling"] == "gsp"]
    said = (
        f"{protocol_told(value)} Ours: {seeds_told(selects)} an arm with GSP. "
        "m is the number of prototypes, zsr the weight lambda of the zero-shot regularisation."
    )
    drawn = whole_grids(value)
    picture = pictured(
        "screening.png",
        "Validation MAP@R against epsilon, a line a number of prototypes",
        f"MAP@R on held-out classes against epsilon, a line for each number m of prototypes, {' and '.join(drawn)}, "
        f"{seeds_told(selects)}; mu = 0.3, lambda = 0.1. The dashed line is average pooling.",
    )
    return "\n\n".join([said, rendered(value), *([picture] if drawn else [])])


def factorial_table(found: dict[str, Any]) -> str:
    """Write a row an arm of the factorial, average pooling first."""
    rows = []
    for loss in design.LOSSES:
        paper = design.paper_figures(loss)
        for arm in (arm for arm in design.factorial_arms() if arm.loss == loss):
            ours = found.get(arm.name)
            rows.append(
                {
                    "loss": loss,
                    "pooling": arm.pooling,
                    "setting": arm.variant,
                    "validation MAP@R": number(ours["validation_map"]) if ours else "",
                    "seeds": str(ours["runs"]) if ours else "",
                    "paper": number(paper[arm.name]),
                }
            )
    return table(rows)


def whole_grids(value: dict[str, Any]) -> tuple[str, ...]:
    """Name the losses of whose grid at least half has been trained; less shows nothing."""
    there = {arm["arm"] for arm in value["arms"]}
    found = []
    for loss in design.LOSSES:
        names = [arm.name for arm in design.grid_arms() if arm.loss == loss]
        if 2 * sum(name in there for name in names) >= len(names):
            found.append(loss)
    return tuple(found)


def grid_table(found: dict[str, Any], loss: str) -> str:
    """Write the grid of one loss: validation MAP@R and the entropy of the weights."""
    arms = {arm.name: arm for arm in design.grid_arms() if arm.loss == loss}
    rows = []
    for count in design.GRID_PROTOTYPES:
        row = {"loss": loss, "m": str(count), "": "MAP@R, entropy"}
        for epsilon in design.GRID_EPSILONS:
            wanted = {"prototypes": count, "mu": 0.3, "epsilon": epsilon}
            name = next(arm.name for arm in arms.values() if arm.pooling_options == wanted)
            arm = found.get(name)
            cell = f"{number(arm['validation_map'])}, {number(arm['entropy'], '.3f')}" if arm else ""
            row[f"epsilon {epsilon:g}"] = cell
        rows.append(row)
    return table(rows)
