"""Table 2 and the pooling table: six losses with average pooling (GAP) and GSP, and other layers, on four benchmarks.

Paper, CUB, MAP@R of 128D models, BN-Inception: C2 20.58 with GAP, 21.52 with GSP; ProxyNCA++ 20.63 and 20.75.
Ours: results/benchmark_DATA.json, with the Keras ResNet50, from which the authors' reference can start as well: on CUB
no loss gains significantly, and the mean gain over six losses excludes the paper's +0.49.

    gspool reproduce benchmark --weights resnet50.safetensors --device cuda --processes 10    # C2 and ProxyNCA++
    gspool reproduce benchmark --losses ms,triplet,panchor,xbm+c1 ...       # the other losses
    gspool reproduce benchmark --poolings all --seeds 0 ...                 # the layers of Table 2
    gspool reproduce benchmark --poolings table --folds 0 --seeds 0 ...     # those of the pooling table
    gspool reproduce benchmark --variants search --seeds 0 ...              # settings beyond the paper's
    gspool reproduce benchmark --variants best ...                          # the one that validation chooses, all seeds
    gspool reproduce benchmark --protocol conventional ...
    gspool reproduce benchmark --train false                                # figures of what has been trained
    gspool reproduce benchmark --quick

Cost: 48 trainings of CUB for the first command. Each is kept when it ends and none is made twice: a later call adds
folds, seeds, losses and layers. They run repeat by repeat, GAP and GSP of a fold together, so that whatever time allows
is a comparison of pairs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from gspool.executor.run_store import Run
from gspool.experiments import benchmark_plots, benchmark_tables, cub_selection
from gspool.experiments.arguments import names_of
from gspool.experiments.benchmark_search import best_variants, search_variants
from gspool.experiments.experiment import Experiment, FromFile, RunOptions
from gspool.experiments.retrieval_study import (
    Study,
    StudySettings,
    check_study,
    draw_beside,
    finished_runs,
    missing_of,
    run_study,
    study_of,
)
from gspool.experiments.retrieval_variants import COMPARED, POOLINGS, Variant, layer_variants, paper_variants

CONVENTIONAL = "benchmark_cub_conventional"


@dataclass(frozen=True)
class BenchmarkSettings(StudySettings):
    """Options of the benchmark.

    Args:
        protocol: fair (four folds, early stopping on held-out classes) or conventional (monitored on the test classes).
        losses: comma-separated names; c2,pnca by default in the fair protocol and xbm+c1 in the other, as in the paper.
        poolings: comma-separated names, "all" for those of Table 2, or "table" for those of the pooling table; gap,gsp
            by default in the fair protocol and gap+gmp,gmp+gsp in the other, as in the paper.
        variants: what to train, separated by semicolons: "paper" (its settings), "search" (settings of GSP beyond
            them), names of settings of the search, or "best" (the one that validation chooses).
        arms: older form of --variants: paper, search, or both.
    """

    protocol: Literal["fair", "conventional"] = "fair"
    losses: str = ""
    poolings: str = ""
    variants: str = ""
    arms: Literal["paper", "search", "both"] | None = None


def wanted_variants(chosen: BenchmarkSettings, runs: Mapping[str, Sequence[Run]] | None = None) -> list[Variant]:
    """Return the variants that the options name; "best" is chosen among finished ``runs``, and none without them.

    Example:
        >>> [each.name for each in wanted_variants(BenchmarkSettings(losses="c2", variants="paper;epsilon 50"))]
        ['c2 gap', 'c2 gsp', 'c2 gsp epsilon 50']
    """
    words = [word for word in (each.strip() for each in chosen.variants.split(";")) if word]
    if chosen.arms == "both":
        words = ["paper", *(words or ["search"])]
    words = words or [chosen.arms or "paper"]
    losses = names_of(chosen.losses, "losses") or COMPARED[chosen.protocol][0]
    names_of(",".join(word.replace(",", " ") for word in words), "variants")
    searched = search_variants(losses)
    known = [*dict.fromkeys(variant.setting for variant in searched)]
    unknown = [word for word in words if word not in ("paper", "search", "best", *known)]
    if unknown:
        raise ValueError(
            f"--variants are paper, search, best, or settings of the search, got {'; '.join(unknown)!r}; settings: "
            f"{'; '.join(known)}"
        )
    if chosen.poolings and "paper" not in words:
        raise ValueError("--poolings chooses among the paper's rows: add paper to --variants, or leave --poolings out")
    found = []
    if "paper" in words:
        poolings = names_of(chosen.poolings, "poolings") or COMPARED[chosen.protocol][1]
        if {"all", "table"} & {*poolings} and len(poolings) > 1:
            raise ValueError(f"--poolings all and --poolings table are given alone, got {chosen.poolings!r}")
        poolings = POOLINGS if poolings == ("all",) else poolings
        found += layer_variants(losses) if poolings == ("table",) else paper_variants(losses, poolings)
    found += [variant for variant in searched if "search" in words or variant.setting in words]
    if "best" in words and runs is not None:
        found += best_variants(losses, runs)
    return [*{variant.name: variant for variant in found}.values()]


def study(options: RunOptions, variants: Sequence[Variant] | None = None) -> Study:
    """Return what is to be trained: the variants that the options name unless given."""
    chosen = options.settings or BenchmarkSettings()
    suffix = "" if chosen.protocol == "fair" else f"_{chosen.protocol}"
    wanted = wanted_variants(chosen) if variants is None else variants
    return study_of(f"benchmark_{chosen.data}{suffix}", options, chosen.protocol, wanted, usual_data=chosen.data)


def run(options: RunOptions) -> None:
    """Train what is missing, and write the figures of everything that has been trained."""
    chosen, wanted = options.settings or BenchmarkSettings(), study(options)
    if chosen.train and "best" in chosen.variants:
        wanted = study(options, wanted_variants(chosen, finished_runs(wanted.open_store())))
    record = run_study(wanted, EXPERIMENT.command(options))
    if chosen.protocol == "conventional":
        print(benchmark_tables.conventional(record))
    else:
        draw_beside(EXPERIMENT, wanted, record)
        print(f"{benchmark_tables.losses(record)}\n\n{benchmark_tables.gains(record)}")


EXPERIMENT = Experiment(
    name="benchmark",
    claim="replacing average pooling by GSP improves every loss on every benchmark, by about a point of MAP@R",
    shows="Table 2, Figure 6, and the supplement's tables of pooling methods, of the conventional setting and of R@K",
    cost="48 trainings of CUB for two losses, each a few minutes of a GPU; ten at a time fit on an H200",
    files=("benchmark_cub", CONVENTIONAL, cub_selection.FILE),
    needs=("cub",),
    run=run,
    tables={
        "losses": benchmark_tables.losses,
        "gains": benchmark_tables.gains,
        "layers": benchmark_tables.layers,
        "beside_layers": partial(benchmark_tables.compared, benchmark_tables.BESIDE_LAYERS),
        "settings": benchmark_tables.settings,
        "chosen_settings": benchmark_tables.chosen_settings,
        "earlier": partial(benchmark_tables.compared, benchmark_tables.EARLIER),
        "memory": benchmark_tables.memory,
        "conventional": FromFile(CONVENTIONAL, benchmark_tables.conventional),
        "conventional_gain": FromFile(CONVENTIONAL, benchmark_tables.conventional_gain),
        "selection": FromFile(cub_selection.FILE, cub_selection.selection),
        "nearness": FromFile(cub_selection.FILE, cub_selection.nearness),
    },
    plots={
        **{f"benchmark_cub{ending}": plot for ending, plot in benchmark_plots.PLOTS.items()},
        cub_selection.FILE: FromFile(cub_selection.FILE, cub_selection.draw),
    },
    settings=BenchmarkSettings,
    check=lambda options: check_study(study(options), ("losses", "poolings", "variants", "arms", "folds")),
    missing=lambda record: missing_of(record, paper_variants()),
    headlines=benchmark_tables.headlines,
    parallel=True,
)
