"""What a reader of the tables might not notice: rows told from GAP, rows that do not select, models without memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gspool.experiments.benchmark.store import Run
from gspool.experiments.benchmark.tables import row_name
from gspool.experiments.benchmark.verdict import FEWEST
from gspool.experiments.paired import by_folds, in_words, verdict
from gspool.losses.presets import XBM_START

# From this entropy on, rounded to what a table shows, weights are equal.
EQUAL = 0.99995


def told_from_gap(arms: Sequence[dict[str, Any]]) -> str:
    """Name the rows whose interval over pairs leaves 0 out, ahead of GAP and behind it; empty without intervals.

    Example:
        >>> found = {"error": 0.1, "pairs": 4, "folds": 4, "fold_error": 0.1}
        >>> def row(pooling, mean):
        ...     difference = {**found, "mean": mean, "fold_mean": mean}
        ...     return {"loss": "c2", "pooling": pooling, "variant": "", "difference_from_gap": difference}
        >>> print(told_from_gap([row("gemean", 0.9), row("gmp", 0.1)]))
        Of 2 rows with 3 pairs or more, told from GAP on test classes: ahead c2 gemean +0.90 (95 % interval +0.58 to \
+1.22); behind none.
    """
    known = [arm for arm in arms if (arm["difference_from_gap"] or {"pairs": 0})["pairs"] >= FEWEST]
    if not known:
        return ""
    sides: dict[str, list[str]] = {"ahead": [], "behind": []}
    for arm in known:
        found = arm["difference_from_gap"]
        if (word := verdict(found)) in sides:
            doubt = "" if verdict(by_folds(found)) == word else ", not by means of folds"
            sides[word].append(f"{arm['loss']} {row_name(arm)} {in_words(found)}{doubt}")
    told = "; ".join(f"{word} {', '.join(rows) or 'none'}" for word, rows in sides.items())
    return f"Of {len(known)} rows with {FEWEST} pairs or more, told from GAP on test classes: {told}."


def equal_weights_told(arms: Sequence[dict[str, Any]]) -> str:
    """Say which rows of GSP at the paper's settings have equal weights, and within what; empty where none has.

    Example:
        >>> row = {"loss": "pnca", "pooling": "gsp", "variant": "", "entropy": 0.99999, "mean_weights": [0.996, 1.004]}
        >>> print(equal_weights_told([row]).partition(": ")[0])
        With pnca a place weighs 0.996 to 1.004 of what equal weights give it, on average over the test images
    """
    equal = [arm for arm in arms if arm["pooling"] == "gsp" and not arm["variant"] and (arm["entropy"] or 0) >= EQUAL]
    maps = [arm["mean_weights"] for arm in equal if arm.get("mean_weights")]
    if not equal or len(maps) < len(equal):
        return ""
    low, high = min(map(min, maps)), max(map(max, maps))
    losses = " and ".join(arm["loss"] for arm in equal)
    rows = "this row shows" if len(equal) == 1 else "these rows show"
    return (
        f"With {losses} a place weighs {low:.3f} to {high:.3f} of what equal weights give it, on average over the test "
        f"images: {rows} what the regularisation does, and nothing of selecting."
    )


def memory_told(runs: Sequence[Run]) -> str:
    """Say how many models of a loss with memory are from before it begins; empty without such runs.

    Example:
        >>> asked = {"loss": "xbm+c1", "pooling": "gap", "variant": "", "arm": "xbm+c1 gap"}
        >>> print(memory_told([Run(asked, {"best_step": step}) for step in (600, 1700)]).partition(":")[2].strip())
        of the models that were kept, 1 of 2 with gap are from before it, and have learned by C1 alone.
    """
    own = [run for run in runs if run.asked["loss"].startswith("xbm+") and not run.asked["variant"]]
    told = []
    for pooling in dict.fromkeys(run.asked["pooling"] for run in own):
        steps = [run.found["best_step"] for run in own if run.asked["pooling"] == pooling]
        told.append(f"{sum(step <= XBM_START for step in steps)} of {len(steps)} with {pooling}")
    if not told:
        return ""
    return (
        f"XBM remembers from step {XBM_START:,} on: of the models that were kept, {', '.join(told)} are from before "
        "it, and have learned by C1 alone."
    )
