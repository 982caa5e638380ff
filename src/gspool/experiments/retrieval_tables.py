"""Cells and rows that the tables of the retrieval benchmarks share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gspool.evaluation.statistics import over_folds, with_interval
from gspool.executor.run_store import Run
from gspool.experiments.retrieval_figures import paired_difference
from gspool.experiments.retrieval_paper import layer_value, paper_values
from gspool.experiments.retrieval_variants import LARGE, LOSSES, POOLINGS, SEEDS, WIDE
from gspool.experiments.tables import markdown_table, plus_minus

Row = Mapping[str, Any]
# Rows of earlier ways of training, which nothing makes any more: GAP with an embedding of its own draw, and the plain
# step before the one with kernels of its own, which made all other rows.
DRAWN_APART, EARLIER_STEP = "drawn apart", "earlier step"


def is_earlier(row: Row) -> bool:
    """Whether a row is of an earlier way of training, and no setting to choose.

    Example:
        >>> [is_earlier({"setting": setting}) for setting in ("", "epsilon 20", "epsilon 20, earlier step")]
        [False, False, True]
    """
    return str(row["setting"]).endswith((DRAWN_APART, EARLIER_STEP))


def table(rows: Sequence[Mapping[str, str | None]], text_columns: int = 1) -> str:
    """Write rows of text as a Markdown table; a note where there are none."""
    return markdown_table(rows, text_columns=text_columns) if rows else "*No runs yet.*"


def number(value: float | None, style: str = ".2f") -> str:
    """Write a number; nothing for None."""
    return "" if value is None else format(value, style)


def in_order(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Put the rows of a loss together, and in each the paper's settings before others, GAP and GSP first.

    Example:
        >>> rows = [("c2", "gsp", "mu 1"), ("pnca", "gsp", ""), ("c2", "gsp", ""), ("c2", "gap", "")]
        >>> names = ("loss", "pooling", "setting")
        >>> [row["pooling"] + row["setting"] for row in in_order([dict(zip(names, row)) for row in rows])]
        ['gap', 'gsp', 'gspmu 1', 'gsp']
    """
    losses = [*LOSSES, *(row["loss"] for row in rows)]
    layers = [*POOLINGS, *(row["pooling"] for row in rows)]
    return sorted(rows, key=lambda row: (losses.index(row["loss"]), row["setting"] != "", layers.index(row["pooling"])))


def single_models(row: Row, metric: str) -> str:
    """Write a metric of single models (128D), with its deviation where every fold has the same two or more repeats.

    Where folds are missing the deviation would be that of folds, which is greater than that of repeats.
    """
    found = row["separate"]
    if found is None or found["repeats"] < 2 or found["repeats"] * len(row["folds"]) != row["runs"]:
        return number(row[metric]["mean"])
    return plus_minus(found[metric]["mean"], found[metric]["std"]) + _few(found)


def joined_models(row: Row) -> str:
    """Write MAP@R of the joined models of all folds (512D); empty where no repeat has all its embeddings."""
    joined = row["joined"]
    if joined is None:
        return ""
    if joined["combinations"] == 1:
        # Where single models have one repeat as well, the column of runs shows it.
        more = (row["separate"] or joined)["repeats"] > 1
        return number(joined["map_512D"]["mean"]) + " (one repeat)" * more
    return plus_minus(joined["map_512D"]["mean"], joined["map_512D"]["std"]) + _few(joined)


def _few(found: Row) -> str:
    return f" ({found['repeats']} repeats)" if found["repeats"] < len(SEEDS) else ""


def comparison(ours: Sequence[Run] | None, theirs: Sequence[Run] | None, name: str = "MAP@R (95 %)") -> dict[str, str]:
    """Return the cells of a comparison in pairs of runs, with 95 % intervals over pairs and over folds; {} if none.

    ``name`` is that of the first cell, MAP@R on the test classes.
    """
    test, watched = (difference(ours, theirs, metric) for metric in ("map@r", "validation"))
    if test is None:
        return {}
    return {
        name: with_interval(test),
        "over folds (95 %)": interval_over_folds(test),
        "ahead": ahead(test),
        "deviation of a pair": number(test["std"] if test["pairs"] > 1 else None),
        "validation (95 %)": with_interval(watched),
        "validation, over folds (95 %)": interval_over_folds(watched),
    }


def difference(ours: Sequence[Run] | None, theirs: Sequence[Run] | None, metric: str) -> dict[str, Any] | None:
    """Return the paired difference of two variants; None where they share no fold and seed."""
    found = paired_difference(ours or [], theirs or [], metric)
    return None if found is None else found._asdict()


def ahead(found: Row | None) -> str:
    """Write how many pairs are ahead."""
    return "" if found is None else f"{found['ahead']} of {found['pairs']}"


def interval_over_folds(found: Row | None) -> str:
    """Write the mean over folds with its interval; empty with fewer than two folds.

    Empty also with one pair a fold, where it is the interval over pairs.
    """
    return with_interval(over_folds(found)) if found and 1 < found["folds"] < found["pairs"] else ""


def setting_name(row: Row) -> str:
    """Write the setting of a row."""
    return f"{row['setting']} ({WIDE}D)" if row["setting"] == LARGE else row["setting"] or "paper's"


def paper_cells(data: str, row: Row) -> dict[str, str]:
    """Return the cells of a row at the paper's settings in the fair protocol, the paper's values beside ours."""
    paper = None if row["setting"] else paper_values(data, row["loss"], row["pooling"])
    std = paper_values(data, row["loss"], row["pooling"], "deviation")
    layer = layer_value(row["loss"], row["pooling"], row["setting"]) if data == "cub" else None
    return {
        "MAP@R 128D": single_models(row, "map"),
        "paper": plus_minus(paper.map, std.map) if paper and std else number(layer),
        "MAP@R 512D": joined_models(row),
        "paper 512D": number(paper.map_joined) if paper else "",
        "P@1 128D": single_models(row, "p1"),
        "paper P@1": number(paper.p1) if paper else "",
    }


def run_cells(row: Row) -> dict[str, str]:
    """Return the flatness of the weights, the mean best step, and the number of runs."""
    return {
        "entropy": number(row["entropy"], ".4f"),
        "best step": number(row["mean_best_step"], ".0f"),
        "runs": str(row["runs"]),
    }
