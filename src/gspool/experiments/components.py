"""Table 1: what the zero-shot regularisation and GSP each bring, and both together, with the contrastive loss C2.

Paper, CUB, MAP@R of 128D models: neither 20.58, GSP alone 20.85, ZSR alone (mu = 1) 21.08, both 21.52.
Ours: results/components.json. The trainings of neither and both are those of `benchmark`, and are not made twice.

    gspool reproduce components --weights resnet50.safetensors --device cuda
    gspool reproduce components --quick
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gspool.experiments.benchmark.arms import Arm
from gspool.experiments.benchmark.figures import arms_of
from gspool.experiments.benchmark.study import StudySettings, check_of, run_study, still_missing
from gspool.experiments.benchmark.study_sections import study_sections
from gspool.experiments.benchmark.tables import concatenated, difference, number, separate, table
from gspool.experiments.components_paper import MARKS, NAMES, paper_figures
from gspool.experiments.components_steps import seen, told
from gspool.experiments.experiment import Experiment, Headline, RunOptions

FILE = "components"
# With mu = 1 every token counts the same, and the attributes are those of all of them.
ARMS = (
    Arm("c2", "gap"),
    Arm("c2", "gsp", "without zsr", zsr=0.0),
    Arm("c2", "gsp", "mu 1", {"mu": 1.0}),
    Arm("c2", "gsp"),
)


def run(options: RunOptions) -> None:
    """Train what is missing and write the figures."""
    chosen = options.settings or StudySettings()
    value = run_study(options, chosen, ARMS, "fair", FILE, EXPERIMENT.command(options))
    print(f"{rows_of(value)}\n\n{told(value)}".rstrip())


def rows_of(value: dict[str, Any]) -> str:
    """Write the table, the paper's values beside ours."""
    rows = []
    for arm in arms_of(value):
        zsr, gsp = MARKS[arm["arm"]]
        paper = paper_figures(value["data"], arm["arm"])
        rows.append(
            {
                "ZSR": zsr,
                "GSP": gsp,
                "data": value["data"],
                "MAP@R 128D": separate(arm, "map"),
                "paper": number(paper[1]),
                "MAP@R 512D": concatenated(arm),
                "paper 512D": number(paper[0]),
                "ahead of GAP, paired": difference(arm),
                "entropy": number(arm["entropy"], ".4f"),
                "runs": str(arm["runs"]),
            }
        )
    return table(rows)


def render(results: Path) -> str:
    """Write the section."""
    return study_sections(results, FILE, lambda value, _: f"{rows_of(value)}\n\n{told(value)}".rstrip())


def headlines(value: dict[str, Any]) -> list[Headline]:
    """Give MAP@R of single models for each of the four."""
    return [
        Headline(
            f"MAP@R 128D, {value['data']}, c2, {NAMES[arm['arm']]}",
            f"{paper_figures(value['data'], arm['arm'])[1]:.2f}",
            separate(arm, "map"),
        )
        for arm in arms_of(value)
    ]


EXPERIMENT = Experiment(
    name="components",
    promise="zero-shot regularisation and GSP each improve average pooling, and both together improve it most",
    shows="Table 1",
    cost="24 trainings beside those of `benchmark`, some 6 minutes of one H200 with ten side by side under MPS",
    files=(FILE,),
    needs=("cub",),
    run=run,
    render=render,
    settings=StudySettings,
    check=check_of("fair"),
    why_not_run="needs a GPU, the data set, and the backbone's ImageNet weights",
    unfinished=lambda results: still_missing(results, FILE, ARMS),
    headlines=headlines,
    verdict=lambda record: seen(record["value"]),
    not_attempted="SOP, In-shop and Cars196 (the data are not to be had here)",
)
