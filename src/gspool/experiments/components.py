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
from gspool.experiments.benchmark.study import StudySettings, run_study, still_missing
from gspool.experiments.benchmark.tables import concatenated, difference, number, separate, table
from gspool.experiments.benchmark.verdict import interval
from gspool.experiments.experiment import Experiment, Headline, RunOptions
from gspool.experiments.report import section

FILE = "components"
# With mu = 1 every token counts the same, and the attributes are those of all of them.
ARMS = (
    Arm("c2", "gap"),
    Arm("c2", "gsp", "without zsr", zsr=0.0),
    Arm("c2", "gsp", "mu 1", {"mu": 1.0}),
    Arm("c2", "gsp"),
)
MARKS = {"c2 gap": ("", ""), "c2 gsp without zsr": ("", "✓"), "c2 gsp mu 1": ("✓", ""), "c2 gsp": ("✓", "✓")}
NAMES = {"c2 gap": "neither", "c2 gsp without zsr": "GSP", "c2 gsp mu 1": "ZSR", "c2 gsp": "both"}
NO_ORDER = "The paper's order does not show."
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


def run(options: RunOptions) -> None:
    """Train what is missing and write the figures."""
    chosen = options.settings or StudySettings()
    value = run_study(options, chosen, ARMS, "fair", FILE, EXPERIMENT.command(options))
    print(f"{rows_of(value)}\n\n{told(value)}".rstrip())


def rows_of(value: dict[str, Any]) -> str:
    """Write the table, the paper's values beside ours."""
    rows = []
    for arm in value["arms"]:
        zsr, gsp = MARKS[arm["arm"]]
        paper = PAPER[value["data"]][arm["arm"]]
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


def told(value: dict[str, Any]) -> str:
    """Say how far each combination is ahead of neither, and whether the order is the paper's; nothing until all are."""
    found = {arm["arm"]: arm["difference_from_gap"] for arm in value["arms"]}
    _, *beyond = NAMES
    if set(found) != set(NAMES) or any(found[name] is None or found[name]["pairs"] < 2 for name in beyond):
        return ""
    lines = []
    for name in beyond:
        low, high = interval(found[name])
        lines.append(f"{NAMES[name]} {found[name]['mean']:+.2f} (95 % interval {low:+.2f} to {high:+.2f})")
    alone = [found[name]["mean"] for name in beyond if name != "c2 gsp"]
    as_there = min(alone) > 0 and max(alone) < found["c2 gsp"]["mean"]
    shape = "In the mean, as in the paper, each alone is ahead, and both together furthest."
    return f"Ahead of neither, in pairs of runs: {', '.join(lines)}. {shape if as_there else NO_ORDER}"


def render(results: Path) -> str:
    """Write the section."""
    return section(results, FILE, lambda record: f"{rows_of(record['value'])}\n\n{told(record['value'])}".rstrip())


def headlines(value: dict[str, Any]) -> list[Headline]:
    """Give MAP@R of single models for each of the four."""
    return [
        Headline(
            f"MAP@R 128D, {value['data']}, c2, {NAMES[arm['arm']]}",
            f"{PAPER[value['data']][arm['arm']][1]:.2f}",
            separate(arm, "map"),
        )
        for arm in value["arms"]
    ]


EXPERIMENT = Experiment(
    name="components",
    promise="zero-shot regularisation and GSP each improve average pooling, and both together improve it most",
    shows="Table 1",
    cost="two more arms of four folds and three repeats beside `benchmark`, about 8 minutes on one H200",
    files=(FILE,),
    needs=("cub",),
    run=run,
    render=render,
    settings=StudySettings,
    why_not_run="needs a GPU, the data set, and the backbone's ImageNet weights",
    unfinished=lambda results: still_missing(results, FILE, ARMS),
    headlines=headlines,
)
