"""95 % intervals: of paired differences over runs and folds, of a mean over classes; means and deviations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor

Found = Mapping[str, Any]


class Difference(NamedTuple):
    """How far one variant is ahead of another over pairs of runs, in points.

    ``std`` is the standard deviation of the single differences (n - 1; 0 for one pair), ``error`` that of their mean as
    if all were independent. Pairs of a fold share their training classes: ``fold_mean`` is the mean over ``folds``
    means of one fold each, which differs from ``mean`` where folds have more or fewer pairs; ``fold_error`` is its
    error. ``ahead`` counts the pairs above 0.
    """

    mean: float
    std: float
    error: float
    pairs: int
    ahead: int
    folds: int
    fold_mean: float
    fold_error: float


def deviation(values: Sequence[float]) -> float:
    """Return the standard deviation of a sample (n - 1); 0 for a single value.

    Example:
        >>> deviation([1.0, 3.0]), deviation([2.0])
        (1.4142135623730951, 0.0)
    """
    return stdev(values) if len(values) > 1 else 0.0


def paired_difference(folds: Sequence[Sequence[float]]) -> Difference:
    """Summarise the differences of pairs, fold by fold.

    Example:
        >>> found = paired_difference([[1.0, 2.0], [3.0]])
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
    """Summarise differences of one pair a seed, without folds.

    Example:
        >>> found = seed_difference([1.0, 2.0, 3.0])
        >>> found["pairs"], found["folds"], found["error"] == found["fold_error"]
        (3, 3, True)
    """
    return paired_difference([[value] for value in values])._asdict()


def matched_difference(
    ours: Mapping[Any, float], theirs: Mapping[Any, float], scale: float = 1.0
) -> dict[str, Any] | None:
    """Summarise the differences of two variants over the runs that both have; None where they share none.

    Runs are keyed by seed, or by (fold, seed).

    Example:
        >>> found = matched_difference({(0, 0): 3.0, (1, 0): 5.0, (1, 1): 9.0}, {(1, 0): 2.0, (0, 0): 1.0})
        >>> found["mean"], found["pairs"], found["folds"]
        (2.5, 2, 2)
    """
    folds: dict[Any, list[float]] = {}
    for key in ours:
        if key in theirs:
            fold = key[0] if isinstance(key, tuple) else key
            folds.setdefault(fold, []).append(scale * (ours[key] - theirs[key]))
    return paired_difference([*folds.values()])._asdict() if folds else None


def interval(found: Found) -> tuple[float, float]:
    """Return the 95 % interval of a mean difference of at least two pairs, by Student's t.

    Example:
        >>> low, high = interval({"mean": 1.0, "error": 0.1, "pairs": 12})
        >>> round(low, 3), round(high, 3)
        (0.78, 1.22)
    """
    from scipy.special import stdtrit

    half = float(stdtrit(found["pairs"] - 1, 0.975)) * found["error"]
    return found["mean"] - half, found["mean"] + half


def over_folds(found: Found) -> dict[str, Any]:
    """Return the same difference with means of folds as pairs, because runs of a fold share their training classes.

    Example:
        >>> over_folds(paired_difference([[1.0, 3.0], [4.0]])._asdict())
        {'mean': 3.0, 'error': 1.0, 'pairs': 2}
    """
    return {"mean": found["fold_mean"], "error": found["fold_error"], "pairs": found["folds"]}


def significance(found: Found) -> Literal["ahead", "behind", "not significant"]:
    """Return "ahead" or "behind" only where the 95 % interval excludes 0.

    Example:
        >>> significance({"mean": 1.0, "error": 0.1, "pairs": 12}), significance({"mean": 1, "error": 0, "pairs": 1})
        ('ahead', 'not significant')
    """
    if found["pairs"] < 2:
        return "not significant"
    low, high = interval(found)
    return "ahead" if low > 0 else "behind" if high < 0 else "not significant"


def with_interval(found: Mapping[str, Any] | None, digits: int = 2) -> str:
    """Write a mean difference with its 95 % interval; empty for None.

    Example:
        >>> with_interval(seed_difference([1.0, 2.0, 3.0])), with_interval(seed_difference([-0.5]), 1)
        ('+2.00 (-0.48 to +4.48)', '-0.5 (one pair)')
    """
    if found is None:
        return ""
    if found["pairs"] < 2:
        return f"{found['mean']:+.{digits}f} (one pair)"
    low, high = interval(found)
    return f"{found['mean']:+.{digits}f} ({low:+.{digits}f} to {high:+.{digits}f})"


def class_bootstrap(
    values: Float[Tensor, "Q S"], classes: Int[Tensor, " Q"], draws: int = 1_000, seed: int = 0
) -> Float[Tensor, "S 2"]:
    """Return the 95 % intervals of the means of query scores, by drawing classes with replacement.

    Queries of a class stand and fall together: drawing single queries would give intervals that are too narrow. Rows
    with NaN are queries that were left out.

    Example:
        >>> scores = torch.tensor([[1.0], [1.0], [0.0], [0.5]])
        >>> low, high = class_bootstrap(scores, torch.tensor([0, 0, 1, 2]))[0]
        >>> bool(low < scores.mean() < high)
        True
    """
    known = ~values.isnan().any(dim=1)
    places = classes[known].unique(return_inverse=True)[1]
    counts = places.bincount().double()
    sums = values.new_zeros(len(counts), values.shape[1], dtype=torch.float64)
    sums.index_add_(0, places, values[known].double())
    generator = torch.Generator().manual_seed(seed)
    means = []
    for _ in range(draws):
        chosen = torch.randint(len(counts), (len(counts),), generator=generator)
        weights = chosen.bincount(minlength=len(counts)).double()
        means.append(weights @ sums / (weights @ counts))
    return torch.stack(means).quantile(torch.tensor([0.025, 0.975], dtype=torch.float64), dim=0).T
