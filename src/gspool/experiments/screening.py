"""Supp. 1.5: which hyperparameters matter, by eight runs of a fractional factorial; then a grid of m and epsilon.

Paper, CUB, validation MAP@R: epsilon matters most, lower mu and lambda are better, the number of prototypes hardly
counts; 40.63 (C2) and 40.85 (PNCA) at best against 39.77 and 39.90 with average pooling. Ours: results/screening.json.

    gspool reproduce screening --weights resnet50.safetensors --device cuda
    gspool reproduce screening --part grid
    gspool reproduce screening --quick
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from gspool.experiments.benchmark.arms import Arm
from gspool.experiments.benchmark.experiment import draw_where_possible
from gspool.experiments.benchmark.study import StudySettings, run_study, still_missing
from gspool.experiments.benchmark.tables import number, table
from gspool.experiments.experiment import Experiment, Headline, RunOptions
from gspool.experiments.report import section

FILE = "screening"
LOSSES = ("c2", "pnca")
# The paper gives one figure an arm. A main effect is a mean over eight trainings, so that one of each tells enough.
SEEDS = (0,)


class Corner(NamedTuple):
    """One run of the factorial: its four settings, and the paper's MAP@R with C2 and with ProxyNCA++."""

    prototypes: int
    mu: float
    epsilon: float
    zsr: float
    paper: tuple[float, float]


# Half of the sixteen corners, those whose signs multiply to +1: main effects are not mixed up with each other.
CORNERS = (
    Corner(16, 0.3, 0.5, 0.1, (40.63, 40.59)),
    Corner(16, 0.7, 0.5, 0.5, (40.41, 40.34)),
    Corner(128, 0.3, 0.5, 0.5, (40.22, 40.35)),
    Corner(128, 0.7, 0.5, 0.1, (40.07, 40.85)),
    Corner(16, 0.3, 20.0, 0.5, (36.11, 40.51)),
    Corner(16, 0.7, 20.0, 0.1, (39.11, 39.88)),
    Corner(128, 0.3, 20.0, 0.1, (39.61, 39.12)),
    Corner(128, 0.7, 20.0, 0.5, (35.36, 39.92)),
)
BASELINE = (39.77, 39.90)
FACTORS = {"prototypes": (16, 128), "mu": (0.3, 0.7), "epsilon": (0.5, 20.0), "zsr": (0.1, 0.5)}
GRID_PROTOTYPES, GRID_EPSILONS = (16, 32, 64, 128), (0.5, 1.0, 5.0, 10.0, 20.0)


@dataclass(frozen=True)
class ScreeningSettings(StudySettings):
    """What may be chosen about the screening.

    Args:
        part: the factorial, the grid, or both.
    """

    part: Literal["factorial", "grid", "both"] = "both"


def factorial_arms() -> tuple[Arm, ...]:
    """List the eight corners and the baseline, for both losses."""
    arms = []
    for loss in LOSSES:
        arms.append(Arm(loss, "gap"))
        for corner in CORNERS:
            options = {"prototypes": corner.prototypes, "mu": corner.mu, "epsilon": corner.epsilon}
            name = f"m {corner.prototypes}, mu {corner.mu:g}, epsilon {corner.epsilon:g}, zsr {corner.zsr:g}"
            arms.append(Arm(loss, "gsp", name, options, zsr=corner.zsr))
    return tuple(arms)


def corner_arms(loss: str) -> list[Arm]:
    """List the eight corners of one loss, in the order of `CORNERS`."""
    return [arm for arm in factorial_arms() if arm.loss == loss and arm.pooling == "gsp"]


def paper_figures(loss: str) -> dict[str, float]:
    """Give the paper's validation MAP@R by the name of the arm, average pooling included.

    Example:
        >>> paper_figures("c2")["c2 gap"]
        39.77
    """
    place = ("c2", "pnca").index(loss)
    figures = [BASELINE[place], *(corner.paper[place] for corner in CORNERS)]
    names = [arm.name for arm in factorial_arms() if arm.loss == loss]
    return dict(zip(names, figures, strict=True))


def grid_arms() -> tuple[Arm, ...]:
    """List the grid of m and epsilon at mu 0.3 and lambda 0.1, for both losses."""
    return tuple(
        Arm(
            loss,
            "gsp",
            f"m {count}, mu 0.3, epsilon {epsilon:g}, zsr 0.1",
            {"prototypes": count, "mu": 0.3, "epsilon": epsilon},
            zsr=0.1,
        )
        for loss in LOSSES
        for count in GRID_PROTOTYPES
        for epsilon in GRID_EPSILONS
    )


def all_arms(part: str) -> tuple[Arm, ...]:
    """List what a part of the study trains; a corner of the factorial may lie on the grid, and is there once."""
    arms = (factorial_arms() if part != "grid" else ()) + (grid_arms() if part != "factorial" else ())
    return tuple({arm.name: arm for arm in arms}.values())


def run(options: RunOptions) -> None:
    """Train what is missing, and write the figures."""
    chosen = options.settings or ScreeningSettings()
    shared = StudySettings(**{key: value for key, value in vars(chosen).items() if key != "part"})
    promised = replace(options, seeds=options.seeds or SEEDS)
    value = run_study(promised, shared, all_arms(chosen.part), "tuning", FILE, EXPERIMENT.command(options))
    picture = options.images / "screening.png"
    draw_where_possible(picture, lambda: draw(value, picture))
    print(rendered(value))


def draw(value: dict[str, Any], path: Path) -> None:
    """Save the grid."""
    from gspool.experiments.benchmark.study_pictures import draw_grid

    names = {
        (arm.loss, arm.pooling_options["prototypes"], arm.pooling_options["epsilon"]): arm.name for arm in grid_arms()
    }
    draw_grid(value, names, LOSSES, path)


def effects(value: dict[str, Any], loss: str) -> dict[str, float] | None:
    """Give the main effect of each factor: the mean at its high level less the mean at its low, in points.

    None until all eight corners have been trained.
    """
    found = {arm["arm"]: arm["validation_map"] for arm in value["arms"]}
    arms = corner_arms(loss)
    if any(found.get(arm.name) is None for arm in arms):
        return None
    return {
        factor: math.fsum(
            (1 if getattr(corner, factor) == high else -1) * found[arm.name]
            for corner, arm in zip(CORNERS, arms, strict=True)
        )
        / (len(CORNERS) / 2)
        for factor, (_, high) in FACTORS.items()
    }


def lowest_corner(value: dict[str, Any], loss: str) -> str:
    """Say what the worst corner alone does to the effects, which are means over few."""
    found = {arm["arm"]: arm["validation_map"] for arm in value["arms"]}
    arms = corner_arms(loss)
    worst = min(arms, key=lambda arm: float(found[arm.name]))
    others = [found[arm.name] for arm in arms if arm is not worst]
    below = math.fsum(others) / len(others) - found[worst.name]
    return (
        f"The lowest corner, {worst.variant}, lies {below:.2f} below the mean of the others, which moves every effect "
        f"by a quarter of that, {below / 4:.2f}."
    )


def rendered(value: dict[str, Any]) -> str:
    """Write the factorial with the paper's values beside ours, its main effects, and the grids."""
    found = {arm["arm"]: arm for arm in value["arms"]}
    rows = []
    for loss in LOSSES:
        arms = [arm for arm in factorial_arms() if arm.loss == loss]
        paper = paper_figures(loss)
        rows += [
            {
                "loss": loss,
                "pooling": arm.pooling,
                "setting": arm.variant,
                "validation MAP@R": number(found[arm.name]["validation_map"]) if arm.name in found else "",
                "paper": number(paper[arm.name]),
            }
            for arm in arms
        ]
    lines = []
    for loss in LOSSES:
        main = effects(value, loss)
        if main is not None:
            told = ", ".join(f"{factor} {points:+.2f}" for factor, points in main.items())
            lines.append(
                f"- {loss}, from the low level to the high, points of MAP@R: {told}. {lowest_corner(value, loss)}"
            )
    grids = [grid for loss in LOSSES for grid in [grid_table(found, loss)] if grid]
    return "\n\n".join([table(rows), *(["\n".join(lines)] if lines else []), *grids])


def grid_table(found: dict[str, Any], loss: str) -> str:
    """Write the grid of one loss, validation MAP@R and the entropy of the weights; nothing where none was trained."""
    arms = {arm.name: arm for arm in grid_arms() if arm.loss == loss}
    if not any(name in found for name in arms):
        return ""
    rows = []
    for count in GRID_PROTOTYPES:
        row = {"loss": loss, "m": str(count), "": "MAP@R, entropy"}
        for epsilon in GRID_EPSILONS:
            wanted = {"prototypes": count, "mu": 0.3, "epsilon": epsilon}
            name = next(arm.name for arm in arms.values() if arm.pooling_options == wanted)
            arm = found.get(name)
            told = f"{number(arm['validation_map'])}, {number(arm['entropy'], '.3f')}" if arm else ""
            row[f"epsilon {epsilon:g}"] = told
        rows.append(row)
    return table(rows)


def render(results: Path) -> str:
    """Write the section."""
    picture = "![MAP@R against epsilon for several numbers of prototypes](images/screening.png)"
    return section(results, FILE, lambda record: f"{rendered(record['value'])}\n\n{picture}")


def headlines(value: dict[str, Any]) -> list[Headline]:
    """Give the main effect of every factor, from its low level to its high."""
    found = []
    for loss in LOSSES:
        ours = effects(value, loss)
        paper = [{"arm": name, "validation_map": figure} for name, figure in paper_figures(loss).items()]
        theirs = effects({"arms": paper}, loss)
        if ours is not None and theirs is not None:
            for factor in FACTORS:
                what = f"effect of {factor}, {value['data']}, {loss}, points of validation MAP@R"
                found.append(Headline(what, f"{theirs[factor]:+.2f}", f"{ours[factor]:+.2f}"))
    return found


EXPERIMENT = Experiment(
    name="screening",
    promise="epsilon matters most, smaller mu and lambda are better, the number of prototypes hardly counts",
    shows="Supp. Table 5 and Figure 4",
    cost="54 trainings, about a quarter of an hour on one H200",
    files=(FILE,),
    needs=("cub",),
    run=run,
    render=render,
    settings=ScreeningSettings,
    why_not_run="needs a GPU, the data set, and the backbone's ImageNet weights",
    unfinished=lambda results: still_missing(results, FILE, all_arms("both"), SEEDS),
    headlines=headlines,
)
