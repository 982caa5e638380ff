"""Figure 6, right: MAP@R against mu, the part of the mass that is pooled.

Paper: low values of mu do alike, and quality falls as mu grows; 0.3 is its advice. Ours: results/mu.json, on the
validation classes of the tuning protocol (one of five parts held out), with C2.

    gspool reproduce mu --weights resnet50.safetensors --device cuda
    gspool reproduce mu --quick
"""

from __future__ import annotations

from pathlib import Path
from statistics import mean
from typing import Any

from gspool.experiments.benchmark.arms import Arm
from gspool.experiments.benchmark.experiment import draw_where_possible
from gspool.experiments.benchmark.study import StudySettings, run_study, still_missing
from gspool.experiments.benchmark.tables import validation_rows
from gspool.experiments.experiment import Experiment, Headline, RunOptions, mean_and_deviation
from gspool.experiments.report import section

FILE = "mu"
# What the paper calls low, and what is not.
MOST_SMALL, LEAST_LARGE = 0.3, 0.7
MUS = (0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 1.0)
ARMS = (Arm("c2", "gap"), *(Arm("c2", "gsp", f"mu {mu:g}", {"mu": mu}) for mu in MUS))


def run(options: RunOptions) -> None:
    """Train what is missing, write the figures, draw the curve."""
    chosen = options.settings or StudySettings()
    value = run_study(options, chosen, ARMS, "tuning", FILE, EXPERIMENT.command(options))
    picture = options.images / "mu.png"
    draw_where_possible(picture, lambda: draw(value, picture))
    print(validation_rows(value))


def draw(value: dict[str, Any], path: Path) -> None:
    """Save the curve."""
    from gspool.experiments.benchmark.study_pictures import draw_mu

    draw_mu(value, {mu: arm.name for mu, arm in zip(MUS, ARMS[1:], strict=True)}, path)


def told(value: dict[str, Any]) -> str:
    """Say how small values of mu compare with large ones; nothing until all have been trained."""
    found = {arm["arm"]: arm["validation_map"] for arm in value["arms"]}
    by_mu = {mu: float(found[arm.name]) for mu, arm in zip(MUS, ARMS[1:], strict=True) if arm.name in found}
    small = [reached for mu, reached in by_mu.items() if mu <= MOST_SMALL]
    large = [reached for mu, reached in by_mu.items() if mu >= LEAST_LARGE]
    if len(by_mu) < len(MUS):
        return ""
    return (
        f"On average {mean(small):.2f} with mu up to {MOST_SMALL:g}, from {min(small):.2f} to {max(small):.2f}, and "
        f"{mean(large):.2f} with mu from {LEAST_LARGE:g} on, from {min(large):.2f} to {max(large):.2f}."
    )


def render(results: Path) -> str:
    """Write the section."""

    def written(record: dict[str, Any]) -> str:
        parts = (validation_rows(record["value"]), told(record["value"]), "![MAP@R against mu](images/mu.png)")
        return "\n\n".join(part for part in parts if part)

    return section(results, FILE, written)


def headlines(value: dict[str, Any]) -> list[Headline]:
    """Give validation MAP@R for the smallest mu, for the paper's, and for all of the mass."""
    by_arm = {arm["arm"]: arm for arm in value["arms"]}
    found = []
    for mu in (MUS[0], 0.3, MUS[-1]):
        arm = by_arm.get(f"c2 gsp mu {mu:g}")
        if arm is not None:
            std = arm["validation_std"] if arm["runs"] > 1 else None
            ours = mean_and_deviation(arm["validation_map"], std)
            found.append(Headline(f"validation MAP@R, {value['data']}, c2, mu {mu:g}", "drawn only", ours))
    return found


EXPERIMENT = Experiment(
    name="mu",
    promise="quality is much the same for small mu and falls as mu grows",
    shows="Figure 6, right",
    cost="24 trainings, about 7 minutes on one H200",
    files=(FILE,),
    needs=("cub",),
    run=run,
    render=render,
    settings=StudySettings,
    why_not_run="needs a GPU, the data set, and the backbone's ImageNet weights",
    unfinished=lambda results: still_missing(results, FILE, ARMS),
    headlines=headlines,
)
