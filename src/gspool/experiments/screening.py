"""Supp., Hyperparameter Selection: which matter, by eight runs of a fractional factorial; then a grid of m and epsilon.

Paper, CUB, validation MAP@R: epsilon matters most, lower mu and lambda are better, the number of prototypes hardly
counts; 40.63 (C2) and 40.85 (PNCA) at best against 39.77 and 39.90 with average pooling. Ours: results/screening.json.

    gspool reproduce screening --weights resnet50.safetensors --device cuda
    gspool reproduce screening --part factorial --seeds 0,1,2    # without which no effect has an interval
    gspool reproduce screening --part grid
    gspool reproduce screening --quick
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from gspool.experiments import screening_design as design
from gspool.experiments.benchmark.experiment import draw_where_possible
from gspool.experiments.benchmark.names import result_name
from gspool.experiments.benchmark.study import StudySettings, check_of, run_study, still_missing
from gspool.experiments.benchmark.study_sections import study_sections
from gspool.experiments.experiment import Experiment, Headline, RunOptions
from gspool.experiments.screening_design import all_arms, factorial_arms, grid_arms
from gspool.experiments.screening_effects import effects_of, paper_effects
from gspool.experiments.screening_promise import grid_of, seen
from gspool.experiments.screening_section import rendered, whole_grids, written

__all__ = ["EXPERIMENT", "ScreeningSettings", "factorial_arms", "grid_arms", "run"]

FILE = "screening"
# The paper averages three repeats of an arm (Supp., Training Procedure). One of each makes a main effect a mean over
# eight trainings, and leaves its error unknown; `--part factorial --seeds 0,1,2` trains all three of the corners.
SEEDS = (0,)


@dataclass(frozen=True)
class ScreeningSettings(StudySettings):
    """What may be chosen about the screening.

    Args:
        part: the factorial, the grid, or both.
    """

    part: Literal["factorial", "grid", "both"] = "both"


def run(options: RunOptions) -> None:
    """Train what is missing, and write the figures."""
    chosen = options.settings or ScreeningSettings()
    promised = replace(options, seeds=options.seeds or SEEDS)
    value = run_study(promised, chosen, all_arms(chosen.part), "tuning", FILE, EXPERIMENT.command(options))
    picture = options.images / f"{result_name(FILE, chosen.data, chosen.backbone)}.png"
    if whole_grids(value):
        draw_where_possible(picture, lambda: draw(value, picture))
    print(rendered(value))


def draw(value: dict[str, Any], path: Path) -> None:
    """Save the grids of which there is enough."""
    from gspool.experiments.benchmark.study_pictures import draw_grid

    names = {
        (arm.loss, arm.pooling_options["prototypes"], arm.pooling_options["epsilon"]): arm.name for arm in grid_arms()
    }
    losses = whole_grids(value)
    arms = [arm for loss in losses for arm in grid_of(value, loss).values()]
    draw_grid({"data": value["data"], "arms": arms}, names, losses, path)


def render(results: Path) -> str:
    """Write the section."""
    return study_sections(results, FILE, written)


def headlines(value: dict[str, Any]) -> list[Headline]:
    """Give the main effect of every factor, from its low level to its high."""
    found = []
    for loss in design.LOSSES:
        ours, paper = effects_of(value, loss), paper_effects(loss)
        if ours is None:
            continue
        seeds = f"{ours.seeds} seeds" if ours.seeds > 1 else "one seed"
        for factor, points in ours.whole.items():
            what = f"effect of {factor}, {value['data']}, {loss}, points of validation MAP@R"
            corner = ", of one corner" if ours.of_one_corner(factor) else ""
            found.append(Headline(what, f"{paper.whole[factor][0]:+.2f}", f"{fmean(points):+.2f} ({seeds}{corner})"))
    return found


EXPERIMENT = Experiment(
    name="screening",
    promise="epsilon matters most, smaller mu and lambda are better, the number of prototypes hardly counts",
    shows="the fractional factorial screening and the search of m and epsilon (Supp., Hyperparameter Selection)",
    cost="54 trainings, some 13 minutes of one H200 with ten side by side under MPS",
    files=(FILE,),
    needs=("cub",),
    run=run,
    render=render,
    settings=ScreeningSettings,
    check=check_of("tuning"),
    why_not_run="needs a GPU, the data set, and the backbone's ImageNet weights",
    unfinished=lambda results: still_missing(results, FILE, all_arms("both"), SEEDS),
    headlines=headlines,
    verdict=lambda record: seen(record["value"]),
    not_attempted="repeats two and three of the grid; the number of prototypes on SOP and In-shop, (b) of the "
    "search (the data are not to be had here)",
)
