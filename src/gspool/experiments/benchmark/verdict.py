"""Whether GSP is ahead of GAP, behind it, or cannot be told from it, in words that follow from the figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gspool.experiments.benchmark.search import search_arms
from gspool.experiments.experiment import Verdict
from gspool.experiments.paired import by_folds, in_words, interval, judged, verdict

# Of fewer pairs an interval is so wide that it says nothing.
FEWEST = 3


def verdicts(arms: Sequence[dict[str, Any]], promised: int) -> str:
    """Write a line a loss about GSP at the paper's setting; ``promised`` pairs there are to be in the end."""
    what = "{loss}, the paper's setting"
    return "\n".join(_line(what.format(**arm), arm, promised, _gap(arms, arm)) for arm in _at_the_papers_setting(arms))


def _at_the_papers_setting(arms: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [arm for arm in arms if arm["pooling"] == "gsp" and not arm["variant"] and arm["difference_from_gap"]]


def verdicts_of_search(arms: Sequence[dict[str, Any]], promised: int) -> str:
    """Write a line a loss about the setting which validation chose among those of the search that were tried.

    They are compared by how far they are ahead of GAP on validation classes, in the same folds and seeds: folds differ
    by more than settings do. Only those of the most folds are candidates.
    """
    lines = []
    for loss in dict.fromkeys(arm["loss"] for arm in arms):
        best = chosen_by_validation(arms, loss)
        if best is None:
            continue
        watched, folds = best["validation_difference"]["mean"], len(best["folds"])
        among = f"{len(_candidates(arms, loss))} on {folds} fold{'s' * (folds > 1)}"
        what = f"{loss}, {best['variant']}, which validation chose ({watched:+.2f} there) out of {among}"
        lines.append(_line(what, best, promised, _gap(arms, best)))
    return "\n".join(lines)


def _gap(arms: Sequence[dict[str, Any]], like: dict[str, Any]) -> dict[str, Any] | None:
    return next((arm for arm in arms if arm["arm"] == f"{like['loss']} gap"), None)


def chosen_by_validation(arms: Sequence[dict[str, Any]], loss: str) -> dict[str, Any] | None:
    """Give the arm of the search that is furthest ahead of GAP on validation classes, of those on the most folds."""
    return max(_candidates(arms, loss), key=lambda arm: arm["validation_difference"]["mean"], default=None)


def _candidates(arms: Sequence[dict[str, Any]], loss: str) -> list[dict[str, Any]]:
    searched = {arm.name for arm in search_arms((loss,))}
    tried = [arm for arm in arms if arm["arm"] in searched and arm.get("validation_difference")]
    most = max((len(arm["folds"]) for arm in tried), default=0)
    return [arm for arm in tried if len(arm["folds"]) == most]


def _line(what: str, arm: dict[str, Any], promised: int, gap: dict[str, Any] | None) -> str:
    found = arm["difference_from_gap"]
    around = f"{found['pairs']} of {promised} pairs of runs"
    points = f"{found['mean']:+.2f} points of MAP@R"
    cut = arm["endings"]["time"]
    facts = [
        _on_validation(arm),
        "" if arm["entropy"] is None else f"Entropy of the weights: {arm['entropy']:.4f}.",
        f"Time cut {cut} of its runs short." if cut else "",
    ]
    if found["pairs"] < FEWEST:
        return " ".join([f"- {what}: **too few runs to tell**, {points} ({around}).", *filter(None, facts)])
    told = {"ahead": "GSP is ahead of GAP", "behind": "GSP is behind GAP", "cannot tell": "cannot tell"}[verdict(found)]
    low, high = interval(found)
    head = f"- {what}: **{told}**, {points} (95 % interval {low:+.2f} to {high:+.2f} over {around})."
    return " ".join([head, *filter(None, [_by_folds(found), _against_deviations(found, arm, gap), *facts])])


def _by_folds(found: dict[str, Any]) -> str:
    if found["folds"] < 2 or found["folds"] == found["pairs"]:
        return ""
    low, high = interval(by_folds(found))
    doubt = verdict(by_folds(found)) != verdict(found)
    also = ", so that other folds could tell otherwise" if doubt else ""
    return f"By the means of {found['folds']} folds, whose runs share classes: {low:+.2f} to {high:+.2f}{also}."


def _against_deviations(found: dict[str, Any], arm: dict[str, Any], gap: dict[str, Any] | None) -> str:
    """Compare with the deviation of single pairs, and with that which the tables show of whole repeats."""
    single = f"{_than(found['mean'], found['std'])} a single pair deviates ({found['std']:.2f})"
    joined = [each.get("joined") for each in (gap, arm) if each is not None]
    known = [each["map_128D"]["std"] for each in joined if each is not None and each["repeats"] > 1]
    if len(known) < 2:
        return f"It is {single}."
    repeats = f"{_than(found['mean'], max(known))} repeats do (GAP {known[0]:.2f}, GSP {known[1]:.2f})"
    return f"It is {single} and {repeats}."


def _than(difference: float, deviation: float) -> str:
    return "more than" if abs(difference) > deviation else "less than"


def _on_validation(arm: dict[str, Any]) -> str:
    """Say what the classes that choose settings see of the difference."""
    watched = arm.get("validation_difference")
    if not watched or watched["pairs"] < 2:
        return ""
    return f"On validation classes: {watched['mean']:+.2f}, standard error {watched['error']:.2f}."


def seen(arms: Sequence[dict[str, Any]], promised: int) -> Verdict:
    """Say whether GSP at the paper's setting is ahead with every loss of which all pairs have been trained."""
    whole = [arm for arm in _at_the_papers_setting(arms) if arm["difference_from_gap"]["pairs"] >= promised]
    if not whole:
        return Verdict("cannot tell", f"no loss has all {promised} pairs of runs")
    told = ", ".join(f"{arm['loss']} {in_words(arm['difference_from_gap'])}" for arm in whole)
    return Verdict(judged([arm["difference_from_gap"] for arm in whole]), f"GSP against GAP, points of MAP@R: {told}")
