"""Cells and rows that the tables of the retrieval benchmarks share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gspool.evaluation.statistics import over_folds, with_interval
from gspool.executor.run_store import Run
from gspool.experiments.retrieval_figures import paired_difference
from gspool.experiments.retrieval_paper import layer_value, paper_values
from gspool.experiments.retrieval_variants import LARGE, LOSSES, POOLINGS, SEEDS, WIDE
from gspool.experiments.tables import cell, markdown_table, plus_minus

Row = Mapping[str, Any]


def table(rows: Sequence[Row], text_columns: int = 1) -> str:
    """Write rows as a Markdown table, floats with two digits; a note where there are none."""
    return markdown_table(rows, ".2f", text_columns=text_columns) if rows else "*No runs yet.*"


def in_order(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Put the rows of a loss together, and in each the paper's settings before others, GAP and GSP first."""
    losses = [*LOSSES, *(row["loss"] for row in rows)]
    layers = [*POOLINGS, *(row["pooling"] for row in rows)]
    return sorted(rows, key=lambda row: (losses.index(row["loss"]), row["setting"] != "", layers.index(row["pooling"])))


def single_models(row: Row, metric: str) -> str:
    """Write a metric of single models (128D), with its deviation where every fold has the same two or more repeats.

    Where folds are missing the deviation would be that of folds, which is greater than that of repeats.
    """
    found = row["separate"]
    if found is None or found["repeats"] < 2 or found["repeats"] * len(row["folds"]) != row["runs"]:
        return cell(row[metric]["mean"], ".2f")
    return plus_minus(found[metric]["mean"], found[metric]["std"]) + _few(found)


def joined_models(row: Row) -> str:
    """Write MAP@R of the joined models of all folds (512D); empty where no repeat has all its embeddings."""
    joined = row["joined"]
    if joined is None:
        return ""
    if joined["combinations"] == 1:
        # Where single models have one repeat as well, the column of runs shows it.
        more = (row["separate"] or joined)["repeats"] > 1
        return cell(joined["map_512D"]["mean"], ".2f") + " (one repeat)" * more
    return plus_minus(joined["map_512D"]["mean"], joined["map_512D"]["std"]) + _few(joined)


def _few(found: Row) -> str:
    return f" ({found['repeats']} repeats)" if found["repeats"] < len(SEEDS) else ""


def comparison(ours: Sequence[Run] | None, theirs: Sequence[Run] | None, name: str = "MAP@R (95 %)") -> dict[str, Any]:
    """Return the cells of a comparison in pairs of runs, with 95 % intervals over pairs and over folds; {} if none.

    ``name`` is that of the first cell, MAP@R on the test classes.
    """
    test, watched = (paired_difference(ours, theirs, metric) for metric in ("map@r", "validation"))
    if test is None:
        return {}
    return {
        name: with_interval(test),
        "over folds (95 %)": interval_over_folds(test),
        "ahead": ahead(test),
        "deviation of a pair": test["std"] if test["pairs"] > 1 else None,
        "validation (95 %)": with_interval(watched),
        "validation, over folds (95 %)": interval_over_folds(watched),
    }


def ahead(found: Row | None) -> str:
    """Write how many pairs are ahead."""
    return "" if found is None else f"{found['ahead']} of {found['pairs']}"


def interval_over_folds(found: Row | None) -> str:
    """Write the mean over folds with its interval; empty with fewer than two folds.

    Empty also with one pair a fold, where it is the interval over pairs.
    """
    return with_interval(over_folds(found)) if found and 1 < found["folds"] < found["pairs"] else ""


def names_of_row(row: Row) -> dict[str, str]:
    """Return loss, pooling and setting."""
    setting = f"{row['setting']} ({WIDE}D)" if row["setting"] == LARGE else row["setting"] or "paper's"
    return {"loss": row["loss"], "pooling": row["pooling"], "setting": setting}


def paper_cells(data: str, row: Row) -> dict[str, Any]:
    """Return the cells of a row at the paper's settings in the fair protocol, the paper's values beside ours."""
    paper = None if row["setting"] else paper_values(data, row["loss"], row["pooling"])
    std = paper_values(data, row["loss"], row["pooling"], "deviation")
    layer = layer_value(row["loss"], row["pooling"], row["setting"]) if data == "cub" else None
    return {
        "MAP@R 128D": single_models(row, "map"),
        "paper": plus_minus(paper.map, std.map) if paper and std else layer,
        "MAP@R 512D": joined_models(row),
        "paper 512D": paper.map_joined if paper else None,
        "P@1 128D": single_models(row, "p1"),
        "paper P@1": paper.p1 if paper else None,
    }


def run_cells(row: Row) -> dict[str, Any]:
    """Return the flatness of the weights, the mean best step, and the number of runs."""
    entropy, step = cell(row["entropy"], ".4f"), cell(row["mean_best_step"], ".0f")
    return {"entropy": entropy, "best step": step, "runs": row["runs"]}
