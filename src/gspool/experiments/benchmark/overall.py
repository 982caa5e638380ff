"""What GSP gains over all losses together, and whether the paper's gains lie within the intervals of ours."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

from gspool.experiments.benchmark.figures import paired_difference
from gspool.experiments.benchmark.forest import paper_gain
from gspool.experiments.benchmark.store import Run
from gspool.experiments.benchmark.verdict import FEWEST, at_the_papers_setting
from gspool.experiments.paired import in_words, interval, seed_difference


def gains_by_fold(runs: Sequence[Run], loss: str) -> dict[int, float]:
    """Give how far GSP is ahead of GAP in every fold that both have, means over seeds, in points."""
    ours = [run for run in runs if run.asked["arm"] == f"{loss} gsp"]
    theirs = [run for run in runs if run.asked["arm"] == f"{loss} gap"]
    gains = {}
    for fold in sorted({run.asked["fold"] for run in ours}):
        found = paired_difference([run for run in ours if run.asked["fold"] == fold], theirs)
        if found is not None:
            gains[fold] = found.mean
    return gains


def over_losses(value: dict[str, Any], runs: Sequence[Run], folds: int) -> str:
    """Say what GSP gains on average over the losses that every fold has; nothing where there are less than two.

    Losses of a fold share its classes, so that the means over losses are the pairs, one a fold.
    """
    arms = at_the_papers_setting(value["arms"])
    gains = {arm["loss"]: gains_by_fold(runs, arm["loss"]) for arm in arms}
    whole = {loss: gain for loss, gain in gains.items() if len(gain) == folds}
    if len(whole) < 2:
        return ""
    found = seed_difference([fmean(gain[fold] for gain in whole.values()) for fold in range(folds)])
    told = f"- all {len(whole)} losses, means over them by fold: {in_words(found)} points of MAP@R."
    paper = [(arm["difference_from_gap"], gain) for arm in arms if (gain := paper_gain(value["data"], arm)) is not None]
    known = [(interval(found), gain) for found, gain in paper if found["pairs"] >= FEWEST]
    if not known:
        return told
    within = sum(low <= gain <= high for (low, high), gain in known)
    mean = fmean(gain for _, gain in paper)
    chance = 100 * (1 - 0.95 ** len(known))
    return (
        f"{told} The paper's gains are {mean:+.2f} on average; {within} of {len(known)} lie within our intervals. Were "
        f"there no gain, one or more of {len(known)} such intervals would leave 0 out in some {chance:.0f} % of cases."
    )
