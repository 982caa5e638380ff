"""What GSP gains over all losses together, and whether the paper's gains lie within the intervals of ours."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any, NamedTuple

from gspool.experiments.benchmark.figures import paired_difference
from gspool.experiments.benchmark.forest import paper_gain
from gspool.experiments.benchmark.store import Run, runs_by_arm
from gspool.experiments.benchmark.tables import in_order
from gspool.experiments.benchmark.verdict import at_the_papers_setting, seen
from gspool.experiments.experiment import Verdict
from gspool.experiments.paired import holds, in_words, interval, seed_difference


def gains_by_fold(runs: Sequence[Run], loss: str) -> dict[int, float]:
    """Give how far GSP is ahead of GAP in every fold that both have, means over seeds, in points."""
    by_arm = runs_by_arm(runs)
    ours, theirs = (by_arm.get(f"{loss} {layer}", []) for layer in ("gsp", "gap"))
    gains = {}
    for fold in sorted({run.asked["fold"] for run in ours}):
        found = paired_difference([run for run in ours if run.asked["fold"] == fold], theirs)
        if found is not None:
            gains[fold] = found.mean
    return gains


class Together(NamedTuple):
    """What GSP gains on average over losses, by fold, and the paper's mean gain with the same; None if it has none."""

    losses: tuple[str, ...]
    ours: dict[str, Any]
    paper: float | None


def together(value: dict[str, Any], runs: Sequence[Run], folds: int) -> Together | None:
    """Average over the losses that every fold has, those of the paper where it has some; None where there is one.

    Losses of a fold share its classes, so that the means over losses are the pairs, one a fold.
    """
    arms = at_the_papers_setting(value["arms"])
    gains = {arm["loss"]: gains_by_fold(runs, arm["loss"]) for arm in arms}
    paper = {arm["loss"]: gain for arm in arms if (gain := paper_gain(value["data"], arm)) is not None}
    whole = {loss: gain for loss, gain in gains.items() if len(gain) == folds and loss in (paper or gains)}
    if len(whole) < 2:
        return None
    found = seed_difference([fmean(gain[fold] for gain in whole.values()) for fold in range(folds)])
    return Together(tuple(whole), found, fmean(paper[loss] for loss in whole) if paper else None)


def over_losses(value: dict[str, Any], runs: Sequence[Run], folds: int) -> str:
    """Say what GSP gains on average over losses, and how many of the paper's gains lie within our intervals."""
    found, arms = together(value, runs, folds), at_the_papers_setting(value["arms"])
    if found is None:
        return ""
    which = f"all {len(arms)}" if len(found.losses) == len(arms) else f"{len(found.losses)} of {len(arms)}"
    told = f"- {which} losses, means over them by fold: {in_words(found.ours)} points of MAP@R."
    if found.paper is None:
        return told
    own = [arm for arm in arms if arm["loss"] in found.losses]
    gains = [(arm["difference_from_gap"], paper_gain(value["data"], arm)) for arm in own]
    within = sum(gain is not None and holds(ours, gain) for ours, gain in gains)
    chance = 100 * (1 - 0.95 ** len(own))
    return (
        f"{told} The paper's gains are {found.paper:+.2f} on average; {within} of {len(own)} lie within our intervals "
        f"over pairs. Were there no gain, one or more of {len(own)} such intervals would leave 0 out in some "
        f"{chance:.0f} % of cases, if they were independent."
    )


def judged_together(value: dict[str, Any], runs: Sequence[Run], folds: int) -> Verdict:
    """Judge loss by loss; where that tells nothing, "no" if the mean over losses rules the paper's mean gain out."""
    by_loss, found = seen(in_order(value["arms"]), folds), together(value, runs, folds)
    if found is None or found.paper is None:
        return by_loss
    ruled_out = interval(found.ours)[1] < found.paper
    word = "no" if by_loss.holds == "cannot tell" and ruled_out else by_loss.holds
    means = f"{in_words(found.ours)} on average over {len(found.losses)} losses, the paper's {found.paper:+.2f}"
    where = f"all this on {value['data']} with {value['backbone']}"
    return Verdict(word, f"{by_loss.because}; {means}; {where}")
