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
    gspool reproduce benchmark --losses c1,xbm+c1@100 ...                   # no memory, and one in use from step 100 on
    gspool reproduce benchmark --protocol conventional ...
    gspool reproduce benchmark --protocol conventional --losses libc --poolings gap,gsp --seeds 0 \\
        --variants "paper;batch norm frozen" ...                            # LIBC, and with statistics of ImageNet
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
from statistics import fmean
from typing import Any, Literal, NamedTuple

from gspool.evaluation import PROTOCOLS
from gspool.evaluation.statistics import deviation, seed_difference, with_interval
from gspool.executor.run_store import Run
from gspool.experiments import benchmark_plots, cub_selection
from gspool.experiments.experiment import Experiment, FromFile, Headline, Record, RunOptions, names_of
from gspool.experiments.retrieval_figures import (
    ahead,
    comparison,
    figures_of,
    in_order,
    joined_models,
    kind_of,
    losses_of,
    names_of_row,
    paired_difference,
    paper_cells,
    place,
    run_cells,
    runs_of,
    single_models,
    table,
)
from gspool.experiments.retrieval_paper import conventional_values, paper_gain, paper_values
from gspool.experiments.retrieval_study import (
    Study,
    StudySettings,
    check_study,
    finished_runs,
    missing_of,
    run_study,
    study_of,
)
from gspool.experiments.retrieval_training import COMPARED, LOSSES, POOLINGS, Variant, layer_variants, paper_variants
from gspool.experiments.tables import cell, plus_minus
from gspool.losses.presets import XBM_START

CONVENTIONAL = "benchmark_cub_conventional"
# Steps of 1e-5 leave what takes part in the transport where it began: a thousand of them move a prototype, or the
# logarithm of epsilon, by at most 0.01.
FAST = {"optimiser.multipliers": {"prototypes": 100.0}}
FAST_AND_LEARNED = {"optimiser.multipliers": {"prototypes": 100.0, "mu_logit": 100.0, "log_epsilon": 100.0}}
WITHOUT_ZSR = {"loss.zsr": 0.0}
# Layers that the paper joins with GSP, or compares it with: it claims that the first is ahead of the second.
BESIDE_LAYERS = {
    "GMP+GSP − GMP": ("gmp+gsp", "gmp"),
    "GeMean+GSP − GeMean": ("gemean+gsp", "gemean"),
    "GSP − DeLF": ("gsp", "delf"),
}
# What another draw of the embedding does with GAP, and another rounding of the training step with GSP.
EARLIER = {
    "GAP, embedding of GSP − own draw": ("gap", "gap drawn apart"),
    "GSP, step with kernels − plain step": ("gsp", "gsp earlier step"),
    "GSP by the plain step − GAP": ("gsp earlier step", "gap"),
}


@dataclass(frozen=True)
class BenchmarkSettings(StudySettings):
    """Options of the benchmark.

    Args:
        protocol: fair (four folds, early stopping on held-out classes) or conventional (monitored on the test classes).
        losses: comma-separated names; c2,pnca by default in the fair protocol and xbm+c1 in the other, as in the paper.
            xbm+c1@100 uses the memory from step 100 on instead of step 1,000; libc is for the conventional protocol.
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
    if "libc" in losses and chosen.protocol != "conventional":
        raise ValueError("libc has settings for the conventional protocol alone: add --protocol conventional")
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


def search_variants(losses: Sequence[str] = ("c2", "pnca")) -> list[Variant]:
    """List what is tried to make GSP select.

    At the paper's epsilon the weights are almost flat and other changes can hardly show, so most settings change one
    thing around epsilon 20. The paper's values are 64 prototypes, mu 0.3 and lambda 0.1; the reference multiplies the
    logits of the regularisation by 9.5, the paper prints no factor. `screening` varies epsilon, mu, lambda and the
    number of prototypes on validation classes; its best point with ProxyNCA++ is here, with C2 none was ahead of GAP.
    """
    sharp = {"epsilon": 20.0}
    learned = {**sharp, "learn_mu": True, "learn_epsilon": True}
    settings: list[tuple[Any, ...]] = [
        ("epsilon 20", sharp),
        ("learned", learned, FAST_AND_LEARNED),
        ("epsilon 20, mu 0.7, 16 prototypes", {**sharp, "mu": 0.7, "prototypes": 16}),
        ("epsilon 50", {"epsilon": 50.0}),
        ("epsilon 20, fast", sharp, FAST),
        ("epsilon 20, tokens", {**sharp, "warm_start": 0}, FAST, 64),
        ("without zsr", {}, WITHOUT_ZSR),
        ("epsilon 20, without zsr", sharp, WITHOUT_ZSR),
        ("epsilon 20, zsr scale 1", sharp, {"loss.zsr_options": {"scale": 1.0}}),
        ("epsilon 20, embedded after", {**sharp, "embedding": "after"}),
        ("epsilon 20, warm-up 3", sharp, {"schedule.warmup_epochs": 3.0}),
    ]
    found = [Variant(loss, "gsp", *setting) for loss in losses for setting in settings]
    if "libc" in losses:
        changes = {"model.freeze": "batchnorm"}
        found += [Variant("libc", pooling, "batch norm frozen", changes=changes) for pooling in ("gap", "gsp")]
    return found


class Choice(NamedTuple):
    """The setting that is furthest ahead of GAP on validation classes, of ``among`` settings that were tried.

    ``places`` are the folds and seeds in which all of them have been trained beside GAP.
    """

    variant: Variant
    places: tuple[tuple[int, int], ...]
    among: int


def chosen_by_validation(runs: Mapping[str, Sequence[Run]], loss: str) -> Choice | None:
    """Compare settings by their difference from GAP on the *validation* classes; None where there is no place.

    Test classes take no part in the choice. Settings count where all that were tried with a loss were trained.
    Folds and seeds differ by more than settings do: of a setting that was repeated more often than others, only the
    runs count that have a partner in every other setting.
    """
    reached = {name: {place(run): run.found["validation"] for run in own} for name, own in runs.items()}
    tried = [variant for variant in search_variants((loss,)) if variant.name in reached]
    gap = reached.get(f"{loss} gap", {})
    places = sorted(set(gap).intersection(*(reached[variant.name] for variant in tried))) if tried else []
    if not places:
        return None
    best = max(tried, key=lambda variant: fmean(reached[variant.name][each] - gap[each] for each in places))
    return Choice(best, tuple(places), len(tried))


def best_variants(losses: Sequence[str], runs: Mapping[str, Sequence[Run]]) -> list[Variant]:
    """Return for every loss the setting that validation chooses."""
    chosen = []
    for loss in losses:
        choice = chosen_by_validation(runs, loss)
        if choice is None:
            raise ValueError(
                f"--variants best: no fold and seed has GAP and every tried setting of {loss}; train them first, for "
                f'example with --variants "paper;search" --losses {loss} --seeds 0'
            )
        chosen.append(choice.variant)
    return chosen


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
    run_study(wanted, EXPERIMENT.command(options))


def rows_of(record: Record, kind: str) -> list[dict[str, Any]]:
    """Return the rows of a kind: losses with GAP and GSP as in the paper, other layers, or other settings of GSP."""
    return [row for row in in_order(figures_of(record["value"])) if kind_of(row) == kind]


def variant_table(kind: str, record: Record) -> str:
    """Write the rows of a kind; losses are Table 2."""
    rows = []
    for row in rows_of(record, kind):
        names, paper = names_of_row(row), paper_cells(record["value"]["data"], row)
        test, watched = row["difference_from_gap"], row["validation_difference"]
        if kind == "losses":
            del names["setting"]
            cells = paper
        elif kind == "layers":
            cells = {**paper, "less GAP (95 %)": with_interval(test), "ahead": ahead(test)}
        else:
            cells = {
                "less GAP, validation (95 %)": with_interval(watched),
                "ahead": ahead(watched),
                "less GAP, test (95 %)": with_interval(test),
                "ahead, test": ahead(test),
                **{name: paper[name] for name in ("MAP@R 128D", "MAP@R 512D", "P@1 128D")},
            }
        rows.append({**names, **cells, **run_cells(row)})
    return table(rows, 2 if kind == "losses" else 3)


def gains(record: Record) -> str:
    """Write how far GSP is ahead of GAP with every loss in pairs of runs, and on average over the losses."""
    value, runs, rows = record["value"], runs_of(record["value"]), list[dict[str, Any]]()
    for loss in losses_of(value):
        names = {"loss": loss, "paper": cell(paper_gain(value["data"], loss, "gsp"), "+.2f")}
        rows += comparison(names, runs.get(f"{loss} gsp"), runs.get(f"{loss} gap"), "GSP − GAP, MAP@R (95 %)")
    by_fold = gains_by_fold(value)
    if len(by_fold) > 1:
        # Losses of a fold share its classes, so that the mean over losses counts once a fold.
        means = [fmean(each) for each in zip(*by_fold.values(), strict=True)]
        known = [gain for loss in by_fold if (gain := paper_gain(value["data"], loss, "gsp")) is not None]
        mean = {
            "loss": "mean",
            "paper": cell(fmean(known) if known else None, "+.2f"),
            "over folds (95 %)": with_interval(seed_difference(means)),
        }
        rows.append({name: mean.get(name) for name in rows[0]})
    return table(rows)


def gains_by_fold(value: Mapping[str, Any]) -> dict[str, list[float]]:
    """Return the mean difference of GSP from GAP in every fold, for the losses that have every fold."""
    runs, found = runs_of(value), {}
    for loss in LOSSES:
        ours, gap = runs.get(f"{loss} gsp", []), runs.get(f"{loss} gap", [])
        folds = [
            paired_difference([run for run in ours if run.asked["fold"] == fold], gap)
            for fold in range(PROTOCOLS[value["protocol"]].folds)
        ]
        if all(folds):
            found[loss] = [each["mean"] for each in folds if each]
    return found


def compared(pairs: Mapping[str, tuple[str, str]], record: Record) -> str:
    """Write how far the first of two layers is ahead of the second with every loss."""
    runs, rows = runs_of(record["value"]), list[dict[str, Any]]()
    for what, (one, other) in pairs.items():
        for loss in LOSSES:
            names, ours = {"comparison": what, "loss": loss}, runs.get(f"{loss} {one}")
            rows += comparison(names, ours, runs.get(f"{loss} {other}"), "test MAP@R (95 %)")
    return table(rows, 2)


def chosen_settings(record: Record) -> str:
    """Write the setting that validation chooses for each loss: the choice flatters the pairs that made it."""
    runs, rows = runs_of(record["value"]), list[dict[str, Any]]()
    for loss in LOSSES:
        if (choice := chosen_by_validation(runs, loss)) is None:
            continue
        gap = {place(run): run for run in runs[f"{loss} gap"]}
        ours = [run for run in runs[choice.variant.name] if place(run) in gap]
        for which, own in {
            "that chose": [run for run in ours if place(run) in choice.places],
            "other": [run for run in ours if place(run) not in choice.places],
            "all": ours,
        }.items():
            setting = f"{choice.variant.setting} (of {choice.among})"
            names = {"loss": loss, "chosen setting": setting, "pairs": f"{which} ({len(own)})"}
            rows += comparison(names, own, [*gap.values()], "less GAP, test (95 %)")
    return table(rows, 3)


def memory(record: Record) -> str:
    """Write how many of the kept models of XBM are from before its memory starts, and have learned by C1 alone."""
    counts = []
    for name, own in runs_of(record["value"]).items():
        if own[0].asked["loss"] == "xbm+c1" and not own[0].asked["setting"]:
            early = sum(run.found["best_step"] <= XBM_START for run in own)
            counts.append(f"{early} of {len(own)} ({name.removeprefix('xbm+c1 ')})")
    return ", ".join(counts)


def conventional(record: Record) -> str:
    """Write the conventional protocol: the best of the repeats by R@1, as in the paper, and the mean of all."""
    value, runs, rows = record["value"], runs_of(record["value"]), []
    for row in in_order(value["variants"]):
        paper = conventional_values(value["data"], value["backbone"], row["loss"], row["pooling"])
        best = row["best_run"]["metrics"]
        repeats = [100 * run.found["metrics"]["r@1"] for run in runs[row["variant"]]]
        rows.append(
            {
                **names_of_row(row),
                **{name.upper(): 100 * each for name, each in best.items() if name.startswith("r@")},
                "paper R@1": paper.r1 if paper else None,
                "paper R@2, 4, 8": ", ".join(f"{each:.2f}" for each in paper.further) if paper else None,
                "mean R@1": plus_minus(fmean(repeats), deviation(repeats)) if len(repeats) > 1 else None,
                "MAP@R": 100 * best["map@r"],
                "paper MAP@R": paper.map if paper else None,
                "entropy": cell(row["entropy"], ".4f"),
                "runs": row["runs"],
            }
        )
    return table(rows, 3)


def conventional_gain(record: Record) -> str:
    """Write how far GSP is ahead of GAP over repeats of the conventional protocol, with and without max pooling."""
    runs, rows = runs_of(record["value"]), []
    for loss in losses_of(record["value"]):
        for before, after in (COMPARED["conventional"][1], ("gap", "gsp")):
            ours, theirs = runs.get(f"{loss} {after}"), runs.get(f"{loss} {before}")
            found = {metric: paired_difference(ours, theirs, metric) for metric in ("r@1", "map@r")}
            cells = {f"{name.upper()} (95 %)": with_interval(each) for name, each in found.items() if each}
            rows += [{"loss": loss, "comparison": f"{after} − {before}", **cells}] if cells else []
    return table(rows, 2)


def headlines(value: dict[str, Any]) -> list[Headline]:
    """Return MAP@R of single and of joined models, for GAP and GSP with every loss that has all folds."""
    found = []
    for row in rows_of({"value": value}, "losses"):
        paper = paper_values(value["data"], row["loss"], row["pooling"])
        if paper is not None and row["separate"] is not None:
            what = f"MAP@R 128D; 512D, {value['data']}, {row['loss']}, {row['pooling']}"
            ours = f"{single_models(row, 'map')}; {joined_models(row) or 'not kept'}"
            found.append(Headline(what, f"{paper.map:.2f}; {paper.map_joined:.2f}", ours))
    return found


EXPERIMENT = Experiment(
    name="benchmark",
    claim="replacing average pooling by GSP improves every loss on every benchmark, by about a point of MAP@R",
    shows="Table 2, Figure 6, and the supplement's tables of pooling methods, of the conventional setting and of R@K",
    cost="48 trainings of CUB for two losses, each a few minutes of a GPU; ten at a time fit on an H200",
    files=("benchmark_cub", CONVENTIONAL, cub_selection.FILE, cub_selection.PROTOTYPES_FILE),
    needs=("cub",),
    run=run,
    tables={
        "losses": partial(variant_table, "losses"),
        "gains": gains,
        "layers": partial(variant_table, "layers"),
        "beside_layers": partial(compared, BESIDE_LAYERS),
        "settings": partial(variant_table, "settings"),
        "chosen_settings": chosen_settings,
        "earlier": partial(compared, EARLIER),
        "memory": memory,
        "conventional": FromFile(CONVENTIONAL, conventional),
        "conventional_gain": FromFile(CONVENTIONAL, conventional_gain),
        "selection": FromFile(cub_selection.FILE, cub_selection.selection),
        "nearness": FromFile(cub_selection.FILE, cub_selection.nearness),
        "overlap": FromFile(cub_selection.PROTOTYPES_FILE, cub_selection.overlap),
    },
    plots={
        **{f"benchmark_cub{ending}": plot for ending, plot in benchmark_plots.PLOTS.items()},
        cub_selection.FILE: FromFile(cub_selection.FILE, cub_selection.draw),
        cub_selection.PROTOTYPES_FILE: FromFile(cub_selection.PROTOTYPES_FILE, cub_selection.draw_prototypes),
    },
    settings=BenchmarkSettings,
    check=lambda options: check_study(study(options), ("losses", "poolings", "variants", "arms", "folds")),
    like=lambda record: CONVENTIONAL if record["value"]["protocol"] == "conventional" else "benchmark_cub",
    missing=lambda record: missing_of(record, paper_variants()),
    headlines=headlines,
    parallel=True,
)
