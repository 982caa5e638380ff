"""Whether GSP is ahead of GAP, behind it, or cannot be told from it, in words that follow from the figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gspool.experiments.benchmark.search import search_arms

# Half widths of 95 % intervals in standard errors, Student's t at 97.5 %, for 1, 2, 3 ... degrees of freedom.
STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201)


def interval(found: dict[str, Any]) -> tuple[float, float]:
    """Give the 95 % interval of a mean difference of at least two pairs; of more than twelve, a little too wide.

    Example:
        >>> low, high = interval({"mean": 1.0, "error": 0.1, "pairs": 12})
        >>> round(low, 3), round(high, 3)
        (0.78, 1.22)
    """
    half = STUDENT[min(found["pairs"] - 1, len(STUDENT)) - 1] * found["error"]
    return found["mean"] - half, found["mean"] + half


def verdict(found: dict[str, Any]) -> str:
    """Say "ahead", "behind" or "cannot tell": the first two only where the interval leaves 0 out.

    Example:
        >>> verdict({"mean": 1.0, "error": 0.1, "pairs": 12}), verdict({"mean": 1.0, "error": 0.0, "pairs": 1})
        ('ahead', 'cannot tell')
    """
    if found["pairs"] < 2:
        return "cannot tell"
    low, high = interval(found)
    return "ahead" if low > 0 else "behind" if high < 0 else "cannot tell"


def verdicts(arms: Sequence[dict[str, Any]], promised: int) -> str:
    """Write a line a loss at the paper's setting, and one at that which validation chose among those tried.

    Settings are those of the search, compared by how far they are ahead of GAP on validation classes, in the same folds
    and seeds: folds differ by more than settings do. Only those of the most folds are candidates.

    Args:
        arms: figures of all arms.
        promised: how many pairs there are to be in the end.
    """
    lines = []
    for loss in dict.fromkeys(arm["loss"] for arm in arms):
        own = [arm for arm in arms if arm["loss"] == loss and arm["pooling"] == "gsp" and arm["difference_from_gap"]]
        gap = next((arm for arm in arms if arm["arm"] == f"{loss} gap"), None)
        lines += [_line(f"{loss}, the paper's setting", arm, promised, gap) for arm in own if not arm["variant"]]
        searched = {arm.name for arm in search_arms((loss,))}
        tried = [arm for arm in own if arm["arm"] in searched and arm.get("validation_difference")]
        most = max((len(arm["folds"]) for arm in tried), default=0)
        candidates = [arm for arm in tried if len(arm["folds"]) == most]
        if candidates:
            best = max(candidates, key=lambda arm: arm["validation_difference"]["mean"])
            watched = best["validation_difference"]["mean"]
            what = f"{loss}, {best['variant']}, which validation chose ({watched:+.2f} there) out of {len(candidates)}"
            lines.append(_line(what, best, promised, gap))
    return "\n".join(lines)


def _line(what: str, arm: dict[str, Any], promised: int, gap: dict[str, Any] | None) -> str:
    found = arm["difference_from_gap"]
    pairs, word = found["pairs"], verdict(found)
    told = {"ahead": "GSP is ahead of GAP", "behind": "GSP is behind GAP", "cannot tell": "cannot tell"}[word]
    flat = "" if arm["entropy"] is None else f" The entropy of its weights is {arm['entropy']:.4f}."
    cut = arm["endings"]["time"]
    short = f" Time cut {cut} of its runs short." if cut else ""
    if pairs < 2:
        single = f"1 of {promised} pairs of runs, {found['mean']:+.2f} points of MAP@R"
        return f"- {what}: **{told}** from {single}.{flat}{short}"
    low, high = interval(found)
    return (
        f"- {what}: **{told}**. Over {pairs} of {promised} pairs of runs the difference is {found['mean']:+.2f} points "
        f"of MAP@R with a standard error of {found['error']:.2f} (95 % interval {low:+.2f} to {high:+.2f}), "
        f"{_against(found['mean'], found['std'])} the standard deviation of a single pair, {found['std']:.2f}"
        f"{_against_repeats(found['mean'], arm, gap)}.{_on_validation(arm)}{flat}{short}"
    )


def _on_validation(arm: dict[str, Any]) -> str:
    """Say what the classes that choose settings see of the difference."""
    watched = arm.get("validation_difference")
    if not watched or watched["pairs"] < 2:
        return ""
    return f" On validation classes it is {watched['mean']:+.2f} with a standard error of {watched['error']:.2f}."


def _against(difference: float, deviation: float) -> str:
    return "more than" if abs(difference) > deviation else "less than"


def _against_repeats(difference: float, arm: dict[str, Any], gap: dict[str, Any] | None) -> str:
    """Compare with the deviation that the tables show, where both arms have several whole repeats."""
    joined = [each.get("joined") for each in (gap, arm) if each is not None]
    known = [each["map_128D"]["std"] for each in joined if each is not None and each["repeats"] > 1]
    if len(known) < 2:
        return ""
    return (
        f", and {_against(difference, max(known))} that of the mean over repeats in the table "
        f"({known[0]:.2f} with GAP, {known[1]:.2f} with GSP)"
    )
