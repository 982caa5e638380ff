"""Differences of pairs and what follows from them: the 95 % interval in words, and whether a promise was seen."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean, stdev
from typing import Any, Literal

Holds = Literal["yes", "partly", "no", "cannot tell"]
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


def by_folds(found: dict[str, Any]) -> dict[str, Any]:
    """Give the same difference with the means of folds as pairs, because runs of a fold share their training classes.

    Example:
        >>> by_folds({"mean": 0.6, "error": 0.2, "pairs": 12, "folds": 4, "fold_error": 0.3})
        {'mean': 0.6, 'error': 0.3, 'pairs': 4}
    """
    return {"mean": found["mean"], "error": found["fold_error"], "pairs": found["folds"]}


def difference_of(values: Sequence[float]) -> dict[str, Any]:
    """Summarise differences, one a seed, as `figures.paired_difference` does those of runs.

    Every seed is a group of its own: folds, where runs have some, are not what differs here.

    Example:
        >>> found = difference_of([1.0, 2.0, 3.0])
        >>> found["mean"], found["std"], found["pairs"], found["ahead"], round(found["error"], 3)
        (2.0, 1.0, 3, 3, 0.577)
    """
    count = len(values)
    std = stdev(values) if count > 1 else 0.0
    error = std / count**0.5
    return {
        "mean": mean(values),
        "std": std,
        "error": error,
        "pairs": count,
        "ahead": sum(value > 0 for value in values),
        "folds": count,
        "fold_error": error,
    }


def in_words(found: dict[str, Any], digits: int = 2) -> str:
    """Write a mean difference with its interval, or say that there is one pair.

    Example:
        >>> in_words(difference_of([1.0, 2.0, 3.0])), in_words(difference_of([-0.5]), 1)
        ('+2.00 (95 % interval -0.48 to +4.48)', '-0.5 (one pair)')
    """
    if found["pairs"] < 2:
        return f"{found['mean']:+.{digits}f} (one pair)"
    low, high = interval(found)
    return f"{found['mean']:+.{digits}f} (95 % interval {low:+.{digits}f} to {high:+.{digits}f})"


def judged(words: Sequence[str]) -> Holds:
    """Say whether a promise of several differences was seen, from what `verdict` says of each.

    Example:
        >>> judged(["ahead", "ahead"]), judged(["ahead", "cannot tell"]), judged(["behind", "cannot tell"])
        ('yes', 'partly', 'no')
        >>> judged(["cannot tell"])
        'cannot tell'
    """
    if "ahead" in words:
        return "yes" if set(words) == {"ahead"} else "partly"
    return "no" if "behind" in words else "cannot tell"
