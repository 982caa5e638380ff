"""The tables of the benchmark, each a function from a record to Markdown."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean
from typing import Any

from gspool.evaluation import PROTOCOLS
from gspool.evaluation.statistics import deviation, seed_difference, with_interval
from gspool.experiments.benchmark_search import chosen_by_validation
from gspool.experiments.experiment import Headline, Record
from gspool.experiments.retrieval_figures import figures_of, paired_difference, place, runs_of
from gspool.experiments.retrieval_paper import conventional_values, paper_gain, paper_values
from gspool.experiments.retrieval_tables import (
    ahead,
    comparison,
    in_order,
    joined_models,
    names_of_row,
    paper_cells,
    run_cells,
    single_models,
    table,
)
from gspool.experiments.retrieval_variants import COMPARED, LOSSES
from gspool.experiments.tables import cell, plus_minus
from gspool.losses.presets import XBM_START

# Layers that the paper joins with GSP, or compares it with: it claims that the first is ahead of the second.
BESIDE_LAYERS = {
    "GMP+GSP − GMP": ("gmp+gsp", "gmp"),
    "GeMean+GSP − GeMean": ("gemean+gsp", "gemean"),
    "GSP − DeLF": ("gsp", "delf"),
}
# Rows of earlier ways of training, which nothing makes any more: GAP with an embedding of its own draw, and the plain
# step before the one with kernels of its own, which made all other rows.
EARLIER_ROWS = ("drawn apart", "earlier step")
# What another draw of the embedding does with GAP, and another rounding of the training step with GSP.
EARLIER = {
    "GAP, embedding of GSP − own draw": ("gap", "gap drawn apart"),
    "GSP, step with kernels − plain step": ("gsp", "gsp earlier step"),
    "GSP by the plain step − GAP": ("gsp earlier step", "gap"),
}


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
    return table(
        [
            {"loss": row["loss"], "pooling": row["pooling"], **paper_cells(data, row), **run_cells(row)}
            for row in rows_of(record)
        ],
        2,
    )


def gains(record: Record) -> str:
    """Write how far GSP is ahead of GAP with every loss in pairs of runs, and on average over the losses."""
    value, runs, rows = record["value"], runs_of(record["value"]), []
    for loss in LOSSES:
        cells = comparison(runs.get(f"{loss} gsp"), runs.get(f"{loss} gap"), "GSP − GAP, MAP@R (95 %)")
        if cells:
            rows.append({"loss": loss, "paper": cell(paper_gain(value["data"], loss, "gsp"), "+.2f"), **cells})
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


def layers(record: Record) -> str:
    """Write the other pooling layers at the paper's settings."""
    return table(
        [
            {
                **names_of_row(row),
                **paper_cells(record["value"]["data"], row),
                "less GAP (95 %)": with_interval(row["difference_from_gap"]),
                "ahead": ahead(row["difference_from_gap"]),
                **run_cells(row),
            }
            for row in rows_of(record, layers=True)
        ],
        3,
    )


def settings(record: Record) -> str:
    """Write other settings of GSP, and rows of earlier ways of training."""
    return table(
        [
            {
                **names_of_row(row),
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


def compared(pairs: Mapping[str, tuple[str, str]], record: Record) -> str:
    """Write how far the first of two layers is ahead of the second with every loss."""
    runs, rows = runs_of(record["value"]), []
    for what, (one, other) in pairs.items():
        for loss in LOSSES:
            cells = comparison(runs.get(f"{loss} {one}"), runs.get(f"{loss} {other}"), "test MAP@R (95 %)")
            rows += [{"comparison": what, "loss": loss, **cells}] if cells else []
    return table(rows, 2)


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
            setting = f"{choice.variant.setting} (of {choice.among})"
            cells = comparison(own, gap, "less GAP, test (95 %)")
            if cells:
                pairs = cells["ahead"].rpartition(" ")[2]
                rows.append({"loss": loss, "chosen setting": setting, "pairs": f"{which} ({pairs})", **cells})
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
    for row in value["variants"]:
        paper = conventional_values(value["data"], value["backbone"], row["loss"], row["pooling"])
        best = row["best_run"]["metrics"]
        repeats = [100 * run.found["metrics"]["r@1"] for run in runs[row["variant"]]]
        rows.append(
            {
                "loss": row["loss"],
                "pooling": row["pooling"],
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
    return table(rows, 2)


def conventional_gain(record: Record) -> str:
    """Write how far GMP+GSP is ahead of GAP+GMP over repeats of the conventional protocol."""
    runs, (before, after) = runs_of(record["value"]), COMPARED["conventional"][1]
    rows = []
    for loss in LOSSES:
        ours, theirs = runs.get(f"{loss} {after}"), runs.get(f"{loss} {before}")
        found = {metric: paired_difference(ours, theirs, metric) for metric in ("r@1", "map@r")}
        cells = {f"{name.upper()} (95 %)": with_interval(each) for name, each in found.items() if each}
        rows += [{"loss": loss, "comparison": f"{after} − {before}", **cells}] if cells else []
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
