"""The synthetic study: bags of tokens, half of them background, pooled by GAP and by GSP (Sec. 5.1, Figure 3 a).

16 classes of 4 tokens each and 4 background tokens that all classes share; the tokens are learned. The paper draws, and
gives no numbers: the convex hulls of the classes overlap with GAP and are separate with GSP. Ours:
results/tokens.json, docs/images/tokens.png.

    gspool reproduce tokens             # 10 minutes on one CPU core
    gspool reproduce tokens --quick     # seconds
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

from gspool.evaluation.statistics import seed_difference, with_interval
from gspool.executor.run_store import RunStore
from gspool.experiments.experiment import Experiment, Headline, Record, RunOptions
from gspool.experiments.plots import save, subplots
from gspool.experiments.runs import missing_seeds, run_seeds
from gspool.experiments.tables import markdown_table, plus_minus
from gspool.experiments.tokens_training import BACKGROUND, TokenSettings, train_tokens
from gspool.provenance import write_result

SEEDS = (0, 1, 2, 3, 4, 5)
LAYERS = ("gap", "gsp")
QUICK = TokenSettings(epochs=2, evaluate_every=1, samples_per_class=4, prototypes=8)
PAIRS = "pairs of hulls that overlap"


def run(options: RunOptions) -> None:
    """Train both layers with every seed, write the figures, and draw the seed with GSP's median MAP@R."""
    usual = QUICK if options.quick else TokenSettings()
    path = options.results / "tokens.json"
    libraries = ("matplotlib", "pytorch-metric-learning", "scipy")
    store = RunStore(options.work / "tokens" / "runs.jsonl", path, libraries=libraries)

    def jobs(seed: int) -> dict[str, dict[str, Any]]:
        return {layer: asdict(replace(usual, pooling=layer, seed=seed)) for layer in LAYERS}

    seeds, found, runs = run_seeds(options, path, store, SEEDS, jobs, partial(partial, train_tokens))
    shown = median_seed({seed: found["gsp", seed]["map@r"] for seed in seeds})
    write_result(
        path,
        {
            "settings": {name: value for name, value in asdict(usual).items() if name not in ("pooling", "seed")},
            "rows": [summary(layer, {seed: found[layer, seed] for seed in seeds}) for layer in LAYERS],
            "shown_seed": shown,
            "runs": [{"asked": run.asked, "found": {**run.found, "geometry": None}} for run in runs],
        },
        command=EXPERIMENT.command(options, seeds),
        seeds=seeds,
        origins=[run.origin for run in runs],
    )
    draw({layer: found[layer, shown] for layer in LAYERS}, options.images / "tokens.png")


def median_seed(figures: Mapping[int, float]) -> int:
    """Return the seed whose figure is the median, the lower of two.

    Example:
        >>> median_seed({0: 0.9, 1: 0.7, 2: 0.8, 3: 0.75})
        3
    """
    return sorted(figures, key=lambda seed: figures[seed])[(len(figures) - 1) // 2]


def summary(layer: str, runs: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    """Average the figures of one layer over its seeds, and keep those of every seed."""
    each = runs.values()
    values = [100 * run["map@r"] for run in each]
    return {
        "layer": layer.upper(),
        "MAP@R": round(fmean(values), 2),
        "std": round(stdev(values), 2) if len(values) > 1 else None,
        "P@1": round(100 * fmean(run["p@1"] for run in each), 2),
        PAIRS: round(fmean(run["overlapping_pairs"] for run in each), 1),
        "seeds without overlap": f"{sum(not run['overlapping_pairs'] for run in each)} of {len(runs)}",
        "samples inside another hull, percent": round(100 * fmean(run["strangers_inside"] for run in each), 1),
        "weight on background": round(fmean(run["on_background"] for run in each), 3),
        "epochs": round(fmean(run["epochs"] for run in each)),
        "by_seed": {
            str(seed): {"MAP@R": round(100 * run["map@r"], 2), PAIRS: run["overlapping_pairs"], "epochs": run["epochs"]}
            for seed, run in runs.items()
        },
    }


def layer_table(record: Record) -> str:
    """Write the figures of both layers; medians beside means, because one run that stops early moves a mean."""
    rows = []
    for row in record["value"]["rows"]:
        each = row["by_seed"].values()
        rows.append(
            {
                "layer": row["layer"],
                "MAP@R": plus_minus(row["MAP@R"], row["std"]),
                "MAP@R, median": float(median(run["MAP@R"] for run in each)),
                "P@1": row["P@1"],
                "overlapping pairs of 120": fmean(run[PAIRS] for run in each),
                "overlapping pairs, median": float(median(run[PAIRS] for run in each)),
                "seeds without overlap": row["seeds without overlap"],
                "samples inside another hull, %": row["samples inside another hull, percent"],
                "weight on background": row["weight on background"],
                "epochs": row["epochs"],
            }
        )
    return markdown_table(rows, ".2f", text_columns=1)


def seed_table(record: Record) -> str:
    """Write a row a seed, with the figures of both layers."""
    rows = record["value"]["rows"]
    names = {"MAP@R": "MAP@R", PAIRS: "overlapping pairs", "epochs": "epochs"}
    return markdown_table(
        [
            {
                "seed": seed,
                **{
                    f"{shown}, {row['layer']}": row["by_seed"][seed][name]
                    for name, shown in names.items()
                    for row in rows
                },
            }
            for seed in rows[0]["by_seed"]
        ],
        ".2f",
        text_columns=0,
    )


def gain(record: Record) -> str:
    """Write GSP − GAP in points of MAP@R over seeds, with its 95 % interval."""
    gap, gsp = (row["by_seed"] for row in record["value"]["rows"])
    return with_interval(seed_difference([gsp[seed]["MAP@R"] - gap[seed]["MAP@R"] for seed in gap]), 1)


def draw(outcomes: Mapping[str, Mapping[str, Any]], path: Path) -> None:
    """Draw the pooled samples with the hull of every class, and the tokens as crosses, one panel a layer.

    Nothing is drawn without matplotlib, or where the geometry is not at hand because the run was read from a result.
    """
    if find_spec("matplotlib") is None or not all(outcome.get("geometry") for outcome in outcomes.values()):
        print("tokens.png is not drawn: it needs matplotlib and trainings made here", flush=True)
        return
    import numpy as np
    from matplotlib import colormaps
    from scipy.spatial import ConvexHull

    figure, grid = subplots(1, len(outcomes), 4.2 * len(outcomes), 4.2)
    colours = colormaps["tab20"]
    for axes, (layer, outcome) in zip(grid[0], outcomes.items(), strict=True):
        pooled, labels, tokens = (np.array(outcome["geometry"][name]) for name in ("pooled", "labels", "tokens"))
        classes = np.unique(labels)
        each = (len(tokens) - BACKGROUND) // len(classes)
        for number in classes:
            own, colour = pooled[labels == number], colours(int(number))
            corners = own[ConvexHull(own).vertices]
            axes.fill(*corners.T, color=colour, alpha=0.25, linewidth=0)
            axes.plot(*own.T, ".", color=colour, markersize=3)
            axes.plot(*tokens[number * each : (number + 1) * each].T, "x", color=colour, markersize=5)
        axes.plot(*tokens[-BACKGROUND:].T, "x", color="black", markersize=7, markeredgewidth=2)
        axes.set_title(f"{layer.upper()}: MAP@R {100 * outcome['map@r']:.1f}", fontsize=11)
        axes.set(xticks=[], yticks=[], aspect="equal")
    save(figure, path)


def headlines(value: Any) -> list[Headline]:
    """Return MAP@R of both layers."""
    return [
        Headline(f"MAP@R, {row['layer']}", "drawn only", plus_minus(row["MAP@R"], row["std"], 1))
        for row in value["rows"]
    ]


EXPERIMENT = Experiment(
    name="tokens",
    claim="bags of tokens with a shared background: class hulls overlap with GAP and are separate with GSP",
    shows="Figure 3 (a)",
    cost="10 minutes on one CPU core",
    files=("tokens",),
    run=run,
    tables={"layers": layer_table, "seeds": seed_table, "gain": gain},
    missing=missing_seeds(SEEDS),
    headlines=headlines,
    on_gpu=False,
    parallel=True,
)
