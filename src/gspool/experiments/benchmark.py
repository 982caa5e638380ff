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
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, Literal

from gspool.evaluation import PROTOCOLS
from gspool.experiments import benchmark_plots, cub_selection
from gspool.experiments.benchmark_search import best_variants, chosen_by_validation, search_variants
from gspool.experiments.experiment import Experiment, FromFile, Headline, Record, RunOptions
from gspool.experiments.retrieval_figures import by_variant, figures_of, paired_difference, place, runs_of
from gspool.experiments.retrieval_paper import conventional_values, paper_gain, paper_values
from gspool.experiments.retrieval_study import (
    StudySettings,
    check_study,
    draw_beside,
    finished_runs,
    names_of,
    open_store,
    run_study,
    study_of,
)
from gspool.experiments.retrieval_tables import (
    DRAWN_APART,
    EARLIER_STEP,
    ahead,
    in_order,
    interval_over_folds,
    joined_models,
    number,
    paper_cells,
    run_cells,
    setting_name,
    single_models,
    table,
)
from gspool.experiments.retrieval_variants import (
    COMPARED,
    LOSSES,
    POOLINGS,
    SEEDS,
    Variant,
    layer_variants,
    paper_variants,
)
from gspool.experiments.run_store import Run
from gspool.experiments.statistics import deviation, seed_difference
from gspool.experiments.tables import plus_minus, with_interval
from gspool.losses.presets import XBM_START
from gspool.provenance import read_result

# Layers that the paper joins with GSP, or compares it with: it claims that the first is ahead of the second.
BESIDE_LAYERS = {
    "GMP+GSP − GMP": ("gmp+gsp", "gmp"),
    "GeMean+GSP − GeMean": ("gemean+gsp", "gemean"),
    "GSP − DeLF": ("gsp", "delf"),
}


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

    Raises:
        ValueError: if a name is not known, or options contradict each other.

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


def check(options: RunOptions) -> None:
    """Refuse options that make no sense before anything is read.

    Raises:
        ValueError: if a name or a number is wrong, or options contradict each other.
        FileNotFoundError: if the file of weights is missing.
    """
    chosen = options.settings or BenchmarkSettings()
    study = study_of(options, chosen, chosen.protocol, wanted_variants(chosen))
    check_study(study, ("losses", "poolings", "variants", "arms", "folds"))


def run(options: RunOptions) -> None:
    """Train what is missing, and write the figures of everything that has been trained."""
    chosen = options.settings or BenchmarkSettings()
    study = study_of(options, chosen, chosen.protocol, wanted_variants(chosen))
    suffix = "" if chosen.protocol == "fair" else f"_{chosen.protocol}"
    path = study.result(f"benchmark_{chosen.data}{suffix}", names_data=True)
    if chosen.train and "best" in chosen.variants:
        finished = by_variant(finished_runs(open_store(study, path)))
        study = replace(study, variants=tuple(wanted_variants(chosen, finished)))
    run_study(study, path, EXPERIMENT.command(options))
    record = read_result(path)
    if chosen.protocol == "conventional":
        print(conventional(record))
        return
    print(f"{losses(record)}\n\n{gains(record)}")
    draw_beside(EXPERIMENT, path, options.images)


def rows_of(record: Record, *, layers: bool = False, settings: bool = False) -> list[dict[str, Any]]:
    """Return rows of the fair protocol: GAP and GSP at the paper's settings, other layers, or other settings."""
    found = []
    for row in in_order(figures_of(record["value"])):
        is_layer = row["pooling"] not in ("gap", "gsp")
        # Settings of other layers are sizes that the paper's table names.
        is_setting = not is_layer and row["setting"] != ""
        if (is_layer, is_setting) == (layers, settings):
            found.append(row)
    return found


def losses(record: Record) -> str:
    """Write Table 2: every loss with GAP and GSP at the paper's settings."""
    data = record["value"]["data"]
    rows = [
        {"loss": row["loss"], "pooling": row["pooling"], **paper_cells(data, row), **run_cells(row)}
        for row in rows_of(record)
    ]
    return table(rows, 2)


def gains(record: Record) -> str:
    """Write how far GSP is ahead of GAP with every loss in pairs of runs, and on average over the losses."""
    data, rows = record["value"]["data"], []
    for row in rows_of(record):
        found, watched = row["difference_from_gap"], row["validation_difference"]
        if row["pooling"] == "gsp" and found:
            rows.append(
                {
                    "loss": row["loss"],
                    "GSP − GAP, MAP@R (95 %)": with_interval(found),
                    "over folds (95 %)": interval_over_folds(found),
                    "pairs ahead": ahead(found),
                    "paper": number(paper_gain(data, row["loss"], "gsp"), "+.2f"),
                    "validation (95 %)": with_interval(watched),
                    "validation, over folds": interval_over_folds(watched),
                }
            )
    if (mean := mean_gain(record["value"])) is not None:
        cells = {
            "loss": "mean",
            "over folds (95 %)": with_interval(mean),
            "paper": number(paper_mean_gain(record["value"]), "+.2f"),
        }
        rows.append({name: cells.get(name, "") for name in rows[0]})
    return table(rows)


def whole_losses(value: Mapping[str, Any]) -> dict[str, dict[int, float]]:
    """Return the mean difference of GSP from GAP by loss and fold, for the losses that have every fold."""
    runs, folds, found = runs_of(value), range(PROTOCOLS[value["protocol"]].folds), {}
    for loss in LOSSES:
        ours, gap = runs.get(f"{loss} gsp", []), runs.get(f"{loss} gap", [])
        by_fold = {fold: paired_difference([run for run in ours if run.asked["fold"] == fold], gap) for fold in folds}
        if all(each is not None for each in by_fold.values()):
            found[loss] = {fold: each.mean for fold, each in by_fold.items() if each is not None}
    return found


def mean_gain(value: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return what GSP gains on average over the losses; None for fewer than two.

    Losses of a fold share its classes, so that the mean over losses counts once a fold.
    """
    whole = whole_losses(value)
    if len(whole) < 2:
        return None
    return seed_difference([fmean(each[fold] for each in whole.values()) for fold in next(iter(whole.values()))])


def paper_mean_gain(value: Mapping[str, Any]) -> float | None:
    """Return what the paper gains on average over the same losses."""
    gains = [paper_gain(value["data"], loss, "gsp") for loss in whole_losses(value)]
    known = [gain for gain in gains if gain is not None]
    return fmean(known) if known else None


def layers(record: Record) -> str:
    """Write the other pooling layers at the paper's settings."""
    data = record["value"]["data"]
    return table(
        [
            {
                "loss": row["loss"],
                "pooling": row["pooling"],
                "setting": setting_name(row),
                **paper_cells(data, row),
                "less GAP (95 %)": with_interval(row["difference_from_gap"]),
                "ahead": ahead(row["difference_from_gap"]),
                **run_cells(row),
            }
            for row in rows_of(record, layers=True)
        ],
        3,
    )


def beside_layers(record: Record) -> str:
    """Write how far GSP improves other layers, and how far it is ahead of DeLF, in pairs of runs."""
    runs, rows = runs_of(record["value"]), []
    for what, (one, other) in BESIDE_LAYERS.items():
        for loss in LOSSES:
            found = paired_difference(runs.get(f"{loss} {one}", []), runs.get(f"{loss} {other}", []))
            if found is not None:
                each = found._asdict()
                rows.append(
                    {"comparison": what, "loss": loss, "MAP@R (95 %)": with_interval(each), "ahead": ahead(each)}
                )
    return table(rows, 2)


def settings(record: Record) -> str:
    """Write other settings of GSP, and rows of earlier ways of training: validation classes first, which choose."""
    return table(
        [
            {
                "loss": row["loss"],
                "pooling": row["pooling"],
                "setting": setting_name(row),
                "less GAP, validation (95 %)": with_interval(row["validation_difference"]),
                "ahead": ahead(row["validation_difference"]),
                "less GAP, test (95 %)": with_interval(row["difference_from_gap"]),
                "ahead, test": ahead(row["difference_from_gap"]),
                "MAP@R 128D": single_models(row, "map"),
                "MAP@R 512D": joined_models(row),
                "P@1 128D": single_models(row, "p1"),
                **run_cells(row),
            }
            for row in rows_of(record, settings=True)
        ],
        3,
    )


def chosen_settings(record: Record) -> str:
    """Write the setting that validation chooses for each loss: the choice flatters the pairs that made it."""
    runs, rows = runs_of(record["value"]), []
    for loss in LOSSES:
        choice = chosen_by_validation(runs, loss)
        if choice is None:
            continue
        ours, gap = runs[choice.variant.name], runs[f"{loss} gap"]
        for which, own in {
            "that chose": [run for run in ours if place(run) in choice.places],
            "other": [run for run in ours if place(run) not in choice.places],
            "all": ours,
        }.items():
            test, watched = (paired_difference(own, gap, metric) for metric in ("map@r", "validation"))
            if test is not None and watched is not None:
                rows.append(
                    {
                        "loss": loss,
                        "chosen setting": f"{choice.variant.setting} (of {choice.among})",
                        "pairs": f"{which} ({test.pairs})",
                        "less GAP, test (95 %)": with_interval(test._asdict()),
                        "test, over folds": interval_over_folds(test._asdict()),
                        "less GAP, validation (95 %)": with_interval(watched._asdict()),
                    }
                )
    return table(rows, 3)


def earlier(record: Record) -> str:
    """Write what another draw of the embedding does with GAP, and what another rounding of the step does with GSP."""
    runs, rows = runs_of(record["value"]), []
    pairs = {
        "GAP, embedding of GSP − own draw": ("gap", f"gap {DRAWN_APART}"),
        "GSP, step with kernels − plain step": ("gsp", f"gsp {EARLIER_STEP}"),
        "GSP by the plain step − GAP": (f"gsp {EARLIER_STEP}", "gap"),
    }
    for what, (one, other) in pairs.items():
        for loss in LOSSES:
            ours, theirs = runs.get(f"{loss} {one}", []), runs.get(f"{loss} {other}", [])
            test, watched = (paired_difference(ours, theirs, metric) for metric in ("map@r", "validation"))
            if test is not None and watched is not None:
                rows.append(
                    {
                        "comparison": what,
                        "loss": loss,
                        "test MAP@R (95 %)": with_interval(test._asdict()),
                        "over folds (95 %)": interval_over_folds(test._asdict()),
                        "deviation of a pair": number(test.std),
                        "validation (95 %)": with_interval(watched._asdict()),
                        "validation, over folds": interval_over_folds(watched._asdict()),
                    }
                )
    return table(rows, 2)


def memory(record: Record) -> str:
    """Write how many of the kept models of XBM are from before its memory starts, and have learned by C1 alone."""
    counts = []
    for name, own in runs_of(record["value"]).items():
        if own[0].asked["loss"] == "xbm+c1" and not own[0].asked["setting"]:
            early = sum(run.found["best_step"] <= XBM_START for run in own)
            counts.append(f"{early} of {len(own)} ({name.removeprefix('xbm+c1 ')})")
    return ", ".join(counts)


def conventional(record: Record) -> str:
    """Write the conventional protocol: the best of the repeats by R@1, as in the paper, and what all of them reach."""
    value, runs, rows = record["value"], runs_of(record["value"]), []
    for row in value["variants"]:
        paper = (
            None
            if row["setting"]
            else conventional_values(value["data"], value["backbone"], row["loss"], row["pooling"])
        )
        best = row["best_run"]["metrics"]
        repeats = [100 * run.found["metrics"]["r@1"] for run in runs[row["variant"]]]
        rows.append(
            {
                "loss": row["loss"],
                "pooling": row["pooling"],
                **{name.upper(): number(100 * each) for name, each in best.items() if name.startswith("r@")},
                "paper R@1": number(paper.r1) if paper else "",
                "paper R@2, 4, 8": ", ".join(map(number, paper.further)) if paper else "",
                "mean R@1": plus_minus(fmean(repeats), deviation(repeats)) if len(repeats) > 1 else "",
                "MAP@R": number(100 * best["map@r"]),
                "paper MAP@R": number(paper.map) if paper else "",
                "entropy": number(row["entropy"], ".4f"),
                "runs": str(row["runs"]),
            }
        )
    return table(rows, 2)


def conventional_gain(record: Record) -> str:
    """Write how far GMP+GSP is ahead of GAP+GMP over repeats of the conventional protocol."""
    runs, (before, after) = runs_of(record["value"]), COMPARED["conventional"][1]
    rows = []
    for loss in LOSSES:
        found = [
            paired_difference(runs.get(f"{loss} {after}", []), runs.get(f"{loss} {before}", []), metric)
            for metric in ("r@1", "map@r")
        ]
        if found[0] is not None and found[1] is not None:
            recall, precision = (with_interval(each._asdict()) for each in found if each is not None)
            rows.append(
                {"loss": loss, "comparison": f"{after} − {before}", "R@1 (95 %)": recall, "MAP@R (95 %)": precision}
            )
    return table(rows, 2)


def headlines(value: dict[str, Any]) -> list[Headline]:
    """Return MAP@R of single and of joined models, for GAP and GSP with every loss that has all folds."""
    found = []
    for row in rows_of({"value": value}):
        paper = paper_values(value["data"], row["loss"], row["pooling"])
        if paper is not None and row["separate"] is not None:
            what = f"MAP@R 128D; 512D, {value['data']}, {row['loss']}, {row['pooling']}"
            ours = f"{single_models(row, 'map')}; {joined_models(row) or 'not kept'}"
            found.append(Headline(what, f"{paper.map:.2f}; {paper.map_joined:.2f}", ours))
    return found


def missing(record: Record) -> str:
    """Return how many trainings of the paper's rows and of the search on CUB have not been made."""
    done = {(run["asked"]["variant"], run["asked"]["fold"], run["asked"]["seed"]) for run in record["value"]["runs"]}
    folds, main = range(PROTOCOLS["fair"].folds), COMPARED["fair"][0]
    rare = [each for each in layer_variants(main) if each.pooling not in POOLINGS]
    groups = {
        "losses with GAP and GSP": (paper_variants(), folds, SEEDS),
        "layers of Table 2": (paper_variants(main, POOLINGS[2:]), folds, (0,)),
        "layers of the pooling table": (rare, (0,), (0,)),
        "settings of the search": (search_variants(main), folds, (0,)),
    }
    left = {}
    for what, (variants, places, seeds) in groups.items():
        wanted = {(each.name, fold, seed) for each in variants for fold in places for seed in seeds}
        left[what] = f"{len(wanted - done)} of {len(wanted)} trainings ({what})" if wanted - done else ""
    return ", ".join(text for text in left.values() if text)


EXPERIMENT = Experiment(
    name="benchmark",
    claim="replacing average pooling by GSP improves every loss on every benchmark, by about a point of MAP@R",
    shows="Table 2, Figure 6, and the supplement's tables of pooling methods, of the conventional setting and of R@K",
    cost="48 trainings of CUB for two losses, each a few minutes of a GPU; ten at a time fit on an H200",
    files=("benchmark_cub", "benchmark_cub_conventional", "cub_selection"),
    needs=("cub",),
    run=run,
    tables={
        "losses": losses,
        "gains": gains,
        "layers": layers,
        "beside_layers": beside_layers,
        "settings": settings,
        "chosen_settings": chosen_settings,
        "earlier": earlier,
        "memory": memory,
        "conventional": FromFile("benchmark_cub_conventional", conventional),
        "conventional_gain": FromFile("benchmark_cub_conventional", conventional_gain),
        "conventional_memory": FromFile("benchmark_cub_conventional", memory),
        "selection": FromFile("cub_selection", cub_selection.selection),
        "nearness": FromFile("cub_selection", cub_selection.nearness),
    },
    plots={
        **{f"benchmark_cub{ending}": plot for ending, plot in benchmark_plots.PLOTS.items()},
        "cub_selection": FromFile("cub_selection", cub_selection.draw),
    },
    settings=BenchmarkSettings,
    check=check,
    missing=missing,
    headlines=headlines,
    parallel=True,
)
