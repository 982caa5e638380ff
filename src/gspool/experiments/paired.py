"""Differences of pairs and what follows from them: the 95 % interval in words, and whether a promise was seen."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any, NamedTuple

from gspool.experiments.experiment import Holds

if TYPE_CHECKING:
    from gspool.evaluation import MeanStd

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


def holds(found: dict[str, Any], value: float) -> bool:
    """Say whether a value lies within the interval of a mean difference.

    Example:
        >>> holds({"mean": 1.0, "error": 0.1, "pairs": 12}, 1.2), holds({"mean": 1.0, "error": 0.1, "pairs": 12}, 1.3)
        (True, False)
    """
    low, high = interval(found)
    return low <= value <= high


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
        >>> by_folds(difference_of([[1.0, 3.0], [4.0]])._asdict())
        {'mean': 3.0, 'error': 1.0, 'pairs': 2}
    """
    return {"mean": found["fold_mean"], "error": found["fold_error"], "pairs": found["folds"]}


def folds_in_doubt(found: dict[str, Any]) -> str:
    """Give the interval by means of folds where it does not tell what pairs of runs do; nothing where it does.

    Example:
        >>> folds_in_doubt(difference_of([[0.1, 0.2, 0.3], [0.9, 1.0, 1.1]])._asdict())
        ', which means of 2 folds do not tell: -4.48 to +5.68'
    """
    if not 1 < found["folds"] < found["pairs"] or verdict(by_folds(found)) == verdict(found):
        return ""
    low, high = interval(by_folds(found))
    return f", which means of {found['folds']} folds do not tell: {low:+.2f} to {high:+.2f}"


def deviation(values: Sequence[float]) -> float:
    """Give the standard deviation of a sample (n - 1); 0 for a single value.

    Example:
        >>> deviation([1.0, 3.0]), deviation([2.0])
        (1.4142135623730951, 0.0)
    """
    return stdev(values) if len(values) > 1 else 0.0


def in_percent(value: MeanStd) -> dict[str, float]:
    """Give a mean and its deviation as results keep them.

    Example:
        >>> from gspool.evaluation import MeanStd
        >>> in_percent(MeanStd(0.25, 0.5))
        {'mean': 25.0, 'std': 50.0}
    """
    return {"mean": 100 * value.mean, "std": 100 * value.std}


class Difference(NamedTuple):
    """How far one thing is ahead of another over pairs, in points.

    ``std`` is the standard deviation of the single differences (n - 1; 0 for one pair), ``error`` that of their mean as
    if all were independent. Pairs of a fold share their training classes: ``fold_mean`` is the mean over ``folds``
    means of a fold each, which is not ``mean`` where folds have more or fewer pairs, and ``fold_error`` its error.
    """

    mean: float
    std: float
    error: float
    pairs: int
    ahead: int
    folds: int
    fold_mean: float
    fold_error: float


def difference_of(folds: Sequence[Sequence[float]]) -> Difference:
    """Summarise the differences of pairs, fold by fold.

    Example:
        >>> found = difference_of([[1.0, 2.0], [3.0]])
        >>> found.mean, found.std, found.pairs, found.ahead, found.folds, round(found.error, 3)
        (2.0, 1.0, 3, 3, 2, 0.577)
    """
    values, means = [value for fold in folds for value in fold], [fmean(fold) for fold in folds]
    std = deviation(values)
    return Difference(
        mean=fmean(values),
        std=std,
        error=std / len(values) ** 0.5,
        pairs=len(values),
        ahead=sum(value > 0 for value in values),
        folds=len(folds),
        fold_mean=fmean(means),
        fold_error=deviation(means) / len(folds) ** 0.5,
    )


def seed_difference(values: Sequence[float]) -> dict[str, Any]:
    """Summarise differences, one a seed: each is a group of its own; folds, where there are some, do not differ here.

    Example:
        >>> found = seed_difference([1.0, 2.0, 3.0])
        >>> found["pairs"], found["folds"], found["error"] == found["fold_error"]
        (3, 3, True)
    """
    return difference_of([[value] for value in values])._asdict()


def in_words(found: dict[str, Any], digits: int = 2) -> str:
    """Write a mean difference with its interval, or say that there is one pair.

    Example:
        >>> in_words(seed_difference([1.0, 2.0, 3.0])), in_words(seed_difference([-0.5]), 1)
        ('+2.00 (95 % interval -0.48 to +4.48)', '-0.5 (one pair)')
    """
    if found["pairs"] < 2:
        return f"{found['mean']:+.{digits}f} (one pair)"
    low, high = interval(found)
    return f"{found['mean']:+.{digits}f} (95 % interval {low:+.{digits}f} to {high:+.{digits}f})"


def judged(differences: Sequence[dict[str, Any]]) -> Holds:
    """Say whether a promise of several differences was seen: "yes" only where all are ahead, by means of folds as well.

    Example:
        >>> ahead, unclear, behind = (seed_difference(each) for each in ([1.0, 1.1], [-1.0, 1.0], [-1.0, -1.1]))
        >>> judged([ahead, ahead]), judged([ahead, unclear]), judged([behind, unclear]), judged([unclear])
        ('yes', 'partly', 'no', 'cannot tell')
    """
    words = [verdict(found) for found in differences]
    if "ahead" in words:
        sure = {*words, *(verdict(by_folds(found)) for found in differences)} == {"ahead"}
        return "yes" if sure else "partly"
    return "no" if "behind" in words else "cannot tell"
