"""Figure 7, right: MAP@R against mu, the part of the mass that is pooled.

Paper: low values of mu do alike, and quality falls as mu grows; 0.3 is its advice. It names neither data set nor loss.
Ours: results/mu.json, on the validation classes of the tuning protocol (one of five parts held out), CUB with C2.

    gspool reproduce mu --weights resnet50.safetensors --device cuda
    gspool reproduce mu --quick
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gspool.experiments.benchmark.arms import Arm
from gspool.experiments.benchmark.experiment import draw_where_possible
from gspool.experiments.benchmark.names import result_name
from gspool.experiments.benchmark.study import StudySettings, check_of, run_study, still_missing
from gspool.experiments.benchmark.study_sections import study_sections
from gspool.experiments.benchmark.tables import validation_figure, validation_rows
from gspool.experiments.experiment import Experiment, Headline, RunOptions
from gspool.experiments.mu_trend import arm_of, seen, told
from gspool.experiments.pictured import pictured
from gspool.experiments.tuning_text import protocol_told, seeds_told

FILE = "mu"
MUS = (0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 1.0)
ARMS = (Arm("c2", "gap"), *(Arm("c2", "gsp", f"mu {mu:g}", {"mu": mu}) for mu in MUS))


def run(options: RunOptions) -> None:
    """Train what is missing, write the figures, draw the curve."""
    chosen = options.settings or StudySettings()
    value = run_study(options, chosen, ARMS, "tuning", FILE, EXPERIMENT.command(options))
    picture = options.images / f"{result_name(FILE, chosen.data, chosen.backbone)}.png"
    draw_where_possible(picture, lambda: draw(value, picture))
    print(validation_rows(value))


def draw(value: dict[str, Any], path: Path) -> None:
    """Save the curve."""
    from gspool.experiments.benchmark.study_pictures import draw_mu

    draw_mu(value, {mu: arm.name for mu, arm in zip(MUS, ARMS[1:], strict=True)}, path)


def render(results: Path) -> str:
    """Write the section."""
    return study_sections(results, FILE, written)


def written(value: dict[str, Any], name: str = FILE) -> str:
    """Write what was measured, the table, what it says, and the picture, which is called as the result is."""
    seeds = seeds_told(value["arms"])
    picture = pictured(
        f"{name}.png",
        "Validation MAP@R against mu, average pooling as a line",
        f"MAP@R on held-out classes against mu, {value['data']} with C2, {seeds}. Bars are standard deviations over "
        "seeds, where there are several; the dashed line is average pooling.",
    )
    said = f"{protocol_told(value)} It names neither data set nor loss of its curve; ours is C2 on {value['data']}."
    parts = (said, validation_rows(value), told(value, MUS), picture)
    return "\n\n".join(part for part in parts if part)


def headlines(value: dict[str, Any]) -> list[Headline]:
    """Give validation MAP@R for the smallest mu, for the paper's, and for all of the mass."""
    by_arm = {arm["arm"]: arm for arm in value["arms"]}
    found = []
    for mu in (MUS[0], 0.3, MUS[-1]):
        arm = by_arm.get(arm_of(mu))
        if arm is not None:
            what = f"validation MAP@R, {value['data']}, c2, mu {mu:g}"
            found.append(Headline(what, "drawn only", validation_figure(arm)))
    return found


EXPERIMENT = Experiment(
    name="mu",
    promise="quality is much the same for small mu and falls as mu grows",
    shows="Figure 7, right",
    cost="24 trainings, some 6 minutes of one H200 with ten side by side under MPS",
    files=(FILE,),
    needs=("cub",),
    run=run,
    render=render,
    settings=StudySettings,
    check=check_of("tuning"),
    why_not_run="needs a GPU, the data set, and the backbone's ImageNet weights",
    unfinished=lambda results: still_missing(results, FILE, ARMS),
    headlines=headlines,
    verdict=lambda record: seen(record["value"], MUS),
)
