"""Figure 7, right: MAP@R against mu, the fraction of the mass that is pooled.

Paper: small values of mu perform alike, and quality falls as mu grows; it advises 0.3, and names neither data set nor
loss. Ours: results/mu.json, C2 on the validation classes of the tuning protocol (the first of five parts of CUB's
training classes held out): mu up to 0.3 is ahead of larger ones, other cuts and the slope are not significant.

    gspool reproduce mu --weights resnet50.safetensors --device cuda
    gspool reproduce mu --quick

Cost: 24 trainings.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from statistics import fmean, linear_regression
from typing import Any

from gspool.evaluation.statistics import seed_difference, with_interval
from gspool.experiments.experiment import Headline, Record
from gspool.experiments.plots import curve, legend_below, save, subplots
from gspool.experiments.retrieval_figures import ahead, run_cells, table, validation_by_seed
from gspool.experiments.retrieval_study import study_experiment
from gspool.experiments.retrieval_training import Variant
from gspool.experiments.tables import plus_minus

MUS = (0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 1.0)
VARIANTS = (Variant("c2", "gap"), *(Variant("c2", "gsp", f"mu {mu:g}", {"mu": mu}) for mu in MUS))
# The paper advises this mu and says that lower ones perform alike: "small" ends here or further up.
MOST_SMALL = 0.3


def reached(row: Mapping[str, Any]) -> str:
    """Write validation MAP@R with its deviation over seeds."""
    return plus_minus(row["validation_map"], row["validation_std"] if row["runs"] > 1 else None)


def rows(record: Record) -> str:
    """Write validation MAP@R by mu."""
    return table(
        [
            {
                "pooling": row["pooling"],
                "setting": row["setting"],
                "validation MAP@R": reached(row),
                "less GAP (95 %)": with_interval(row["validation_difference"]),
                "ahead": ahead(row["validation_difference"]),
                **run_cells(row),
            }
            for row in record["value"]["variants"]
        ],
        2,
    )


def falls(value: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Compare small mu with larger ones over the seeds that every mu was trained with; positive where quality falls.

    The paper does not say where small mu end, so they are cut off between all neighbours from `MOST_SMALL` on. The
    slope is the fall from mu 0 to mu 1 on the line fitted to all of them by least squares.
    """
    names = [each.name for each in VARIANTS[1:]]
    seeds = [[found[name] for name in names] for found in validation_by_seed(value, names)]
    if not seeds:
        return {}
    cuts = {
        f"mu ≤ {MUS[count - 1]:g} − larger": seed_difference(
            [fmean(each[:count]) - fmean(each[count:]) for each in seeds]
        )
        for count in range(sum(mu <= MOST_SMALL for mu in MUS), len(MUS))
    }
    return {
        **cuts,
        "fall of the line, mu 0 to 1": seed_difference([-linear_regression(MUS, each).slope for each in seeds]),
    }


def trend(record: Record) -> str:
    """Write how far small mu are ahead of larger ones, for every cut, with intervals over seeds."""
    found = falls(record["value"])
    return table([{"comparison": what, "validation MAP@R (95 %)": with_interval(each)} for what, each in found.items()])


def draw(record: Record, path: Path) -> None:
    """Draw validation MAP@R against mu with deviations over seeds, and average pooling as a line."""
    by_name = {row["variant"]: row for row in record["value"]["variants"]}
    points = [(mu, by_name[each.name]) for mu, each in zip(MUS, VARIANTS[1:], strict=True) if each.name in by_name]
    figure, ((axes,),) = subplots()
    means = [row["validation_map"] for _, row in points]
    stds = [row["validation_std"] if row["runs"] > 1 else None for _, row in points]
    curve(axes, [mu for mu, _ in points], means, stds, label="GSP")
    if "c2 gap" in by_name:
        axes.axhline(by_name["c2 gap"]["validation_map"], linestyle="--", color="grey", label="GAP")
    axes.set(xlabel="$\\mu$", ylabel="validation MAP@R, %", title=f"{record['value']['data']}, C2")
    legend_below(figure)
    save(figure, path)


def headlines(value: dict[str, Any]) -> list[Headline]:
    """Return validation MAP@R for the smallest mu, for the paper's, and for all of the mass."""
    names = {f"c2 gsp mu {mu:g}" for mu in (MUS[0], MOST_SMALL, MUS[-1])}
    return [
        Headline(f"validation MAP@R, {value['data']}, c2, {row['setting']}", "drawn only", reached(row))
        for row in value["variants"]
        if row["variant"] in names
    ]


EXPERIMENT = study_experiment(
    "mu",
    "tuning",
    lambda _: VARIANTS,
    claim="quality is much the same for small mu and falls as mu grows",
    shows="Figure 7, right",
    cost="24 trainings of CUB, each a few minutes of a GPU",
    tables={"rows": rows, "trend": trend},
    plots={"mu": draw},
    headlines=headlines,
)
