"""The conventional protocol in the report: the best of the repeats, as in the paper, and what all of them tell."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from gspool.experiments.benchmark.arms import COMPARED
from gspool.experiments.benchmark.figures import paired_difference
from gspool.experiments.benchmark.noticed import memory_told
from gspool.experiments.benchmark.paper import conventional_values
from gspool.experiments.benchmark.store import Run, runs_of
from gspool.experiments.benchmark.tables import named, number, table
from gspool.experiments.experiment import mean_and_deviation
from gspool.experiments.paired import deviation, in_words, verdict


def rendered(value: dict[str, Any]) -> str:
    """Write the table, and a line a loss about the layers that the paper compares."""
    runs = runs_of(value)
    lines = [line for loss in dict.fromkeys(arm["loss"] for arm in value["arms"]) if (line := told(runs, loss))]
    parts = (table(conventional_rows(value, runs)), "\n".join(lines), memory_told(runs))
    return "\n\n".join(part for part in parts if part)


def conventional_rows(value: dict[str, Any], runs: Sequence[Run]) -> list[dict[str, str]]:
    """Give the rows: R@K of the best repeat, the mean of R@1 over repeats."""
    rows = []
    for arm in value["arms"]:
        known = conventional_values(value["data"], value["backbone"], arm["loss"], arm["pooling"])
        paper = None if arm["variant"] else known
        best = arm["best_run"]["metrics"]
        repeats = [100 * run.found["metrics"]["r@1"] for run in runs if run.asked["arm"] == arm["arm"]]
        rows.append(
            {
                **named(arm),
                **{name.upper(): number(100 * found) for name, found in best.items() if name.startswith("r@")},
                "paper R@1": number(paper.r1) if paper else "",
                "paper R@2, 4, 8": ", ".join(number(each) for each in paper.further) if paper else "",
                "mean R@1": mean_and_deviation(fmean(repeats), deviation(repeats)) if len(repeats) > 1 else "",
                "MAP@R": number(100 * best["map@r"]),
                "paper MAP@R": number(paper.map) if paper else "",
                "entropy": number(arm["entropy"], ".4f"),
                "runs": str(arm["runs"]),
            }
        )
    return rows


def told(runs: Sequence[Run], loss: str) -> str:
    """Say how far the layer with GSP is ahead of the one without it over repeats; empty without two pairs.

    Example:
        >>> def run(pooling, seed, found):
        ...     return Run({"arm": f"c2 {pooling}", "fold": 0, "seed": seed}, {"metrics": {"r@1": found, "map@r": 0.2}})
        >>> told([run("gap+gmp", seed, 0.6) for seed in range(3)] + [run("gmp+gsp", 0, 0.6)], "c2")
        ''
        >>> runs = [run("gap+gmp", seed, 0.6) for seed in range(3)] + [run("gmp+gsp", seed, 0.61) for seed in range(3)]
        >>> print(told(runs, "c2").partition(",")[0])
        - c2: **gmp+gsp is ahead of gap+gmp**
    """
    before, after = COMPARED["conventional"][1]
    ours, theirs = ([run for run in runs if run.asked["arm"] == f"{loss} {layer}"] for layer in (after, before))
    recall, precision = (paired_difference(ours, theirs, metric) for metric in ("r@1", "map@r"))
    if recall is None or precision is None or recall.pairs < 2:
        return ""
    word = {
        "ahead": f"{after} is ahead of {before}",
        "behind": f"{after} is behind {before}",
        "cannot tell": f"cannot tell {after} from {before}",
    }[verdict(recall._asdict())]
    return (
        f"- {loss}: **{word}**, {in_words(recall._asdict())} points of R@1 over {recall.pairs} repeats; "
        f"MAP@R {in_words(precision._asdict())}."
    )
