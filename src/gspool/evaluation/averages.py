"""From single runs to the figures of a protocol: means, standard deviations, and all combinations of models."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch.nn.functional import normalize

from gspool.evaluation.retrieval import retrieval_metrics

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from jaxtyping import Float, Int
    from torch import Tensor


class RunResult(NamedTuple):
    """What one trained model leaves behind: its test embeddings and its metrics.

    ``gallery`` holds the embeddings of the gallery where the test set has one apart from its queries (In-shop).
    """

    embeddings: Float[Tensor, "Q D"]
    metrics: Mapping[str, float]
    gallery: Float[Tensor, "G D"] | None = None


class MeanStd(NamedTuple):
    """A mean and the standard deviation around it, of the whole population (divided by n)."""

    mean: float
    std: float

    def __str__(self) -> str:
        return f"{self.mean:.4f} ± {self.std:.4f}"


class Combination(NamedTuple):
    """One choice of a repeat for every fold: the mean of its models, and their concatenation."""

    repeats: tuple[int, ...]
    separate: dict[str, float]
    concatenated: dict[str, float]


class FairAverage(NamedTuple):
    """Mean and deviation over all combinations, for the models taken separately (128D) and concatenated (512D)."""

    separate: dict[str, MeanStd]
    concatenated: dict[str, MeanStd]
    combinations: tuple[Combination, ...]


def mean_and_std(metrics: Sequence[Mapping[str, float]]) -> dict[str, MeanStd]:
    """Average metrics that carry the same names.

    Raises:
        ValueError: if there are none, or their names differ.

    Example:
        >>> mean_and_std([{"p@1": 0.2}, {"p@1": 0.4}])["p@1"].mean
        0.30000000000000004
    """
    if not metrics:
        raise ValueError("there are no metrics to average: at least one run is needed")
    names = list(metrics[0])
    for other in metrics:
        if set(other) != set(names):
            raise ValueError(f"runs must be measured alike to be averaged, got {sorted(names)} and {sorted(other)}")
    columns = {name: [float(one[name]) for one in metrics] for name in names}
    means = {name: math.fsum(values) / len(values) for name, values in columns.items()}
    return {
        name: MeanStd(means[name], math.sqrt(math.fsum((value - means[name]) ** 2 for value in values) / len(values)))
        for name, values in columns.items()
    }


def _means(metrics: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: value.mean for name, value in mean_and_std(metrics).items()}


def concatenate_embeddings(parts: Sequence[Float[Tensor, "N D"]]) -> Float[Tensor, "N E"]:
    """Join the embeddings of several models: each normalised, concatenated, and normalised again.

    Raises:
        ValueError: if there are none, or the models embedded different numbers of items.

    Example:
        >>> concatenate_embeddings([torch.tensor([[3.0, 4.0]]), torch.tensor([[0.0, 2.0]])]).square()
        tensor([[0.1800, 0.3200, 0.0000, 0.5000]])
    """
    if not parts or any(len(part) != len(parts[0]) for part in parts):
        raise ValueError(f"models must embed the same items to be joined, got {[len(part) for part in parts]} rows")
    widened = [part.to(torch.promote_types(part.dtype, torch.float32)) for part in parts]
    return normalize(torch.cat([normalize(part) for part in widened], dim=1))


def one_repeat_a_fold(runs: Collection[tuple[int, int]]) -> list[tuple[tuple[int, int], ...]]:
    """List every way to choose one repeat for each fold, from the (fold, repeat) that there are.

    Raises:
        ValueError: if a (fold, repeat) is missing.

    Example:
        >>> one_repeat_a_fold([(0, 0), (0, 1), (1, 0), (1, 1)])[:2]
        [((0, 0), (1, 0)), ((0, 0), (1, 1))]
    """
    folds, repeats = (sorted({pair[axis] for pair in runs}) for axis in (0, 1))
    missing = [pair for pair in itertools.product(folds, repeats) if pair not in runs]
    if missing or not runs:
        raise ValueError(f"every fold needs every repeat, but (fold, repeat) {missing or 'all'} are missing")
    choices = itertools.product(repeats, repeat=len(folds))
    return [tuple(zip(folds, choice, strict=True)) for choice in choices]


def separate_average(metrics: Mapping[tuple[int, int], Mapping[str, float]]) -> dict[str, MeanStd]:
    """Average what single models reach over every combination of one repeat a fold: `fair_average` without embeddings.

    Raises:
        ValueError: if a (fold, repeat) is missing, or models were not measured alike.

    Example:
        >>> reached = {(0, 0): 0.2, (0, 1): 0.4, (1, 0): 0.3, (1, 1): 0.3}
        >>> print(separate_average({place: {"map@r": value} for place, value in reached.items()})["map@r"])
        0.3000 ± 0.0500
    """
    return mean_and_std([_means([metrics[pair] for pair in pairs]) for pairs in one_repeat_a_fold(metrics)])


def fair_average(
    runs: Mapping[tuple[int, int], RunResult],
    labels: Int[Tensor, " Q"],
    gallery_labels: Int[Tensor, " G"] | None = None,
    *,
    ks: Sequence[int] = (1, 2, 4, 8),
    device: torch.device | str | None = None,
    on_combination: Callable[[], object] | None = None,
) -> FairAverage:
    """Evaluate every combination of one repeat a fold (Supp. 1.6.4, 1.6.5): 3 repeats of 4 folds make 3^4 = 81.

    A combination counts twice: the mean of its models' own metrics, and the metrics of their concatenation.

    Args:
        runs: results by (fold, repeat), every pair of them.
        labels: classes of the test embeddings.
        gallery_labels: classes of the gallery, where there is one.
        ks: ranks of R@K for the concatenation.
        device: where to search; None stays where the embeddings are.
        on_combination: called after each combination, to show progress.

    Raises:
        ValueError: if a (fold, repeat) is missing, or the results do not fit each other or the labels.
    """
    combinations = []
    for pairs in one_repeat_a_fold(runs):
        chosen = [runs[pair] for pair in pairs]
        joined = retrieval_metrics(
            concatenate_embeddings([result.embeddings for result in chosen]),
            labels,
            None if gallery_labels is None else concatenate_embeddings([_gallery(result) for result in chosen]),
            gallery_labels,
            ks=ks,
            device=device,
        )
        separate = _means([result.metrics for result in chosen])
        combinations.append(Combination(tuple(repeat for _, repeat in pairs), separate, dict(joined)))
        if on_combination is not None:
            on_combination()
    return FairAverage(
        separate=mean_and_std([one.separate for one in combinations]),
        concatenated=mean_and_std([one.concatenated for one in combinations]),
        combinations=tuple(combinations),
    )


def _gallery(result: RunResult) -> Float[Tensor, "G D"]:
    if result.gallery is None:
        raise ValueError("gallery_labels were given, but a run has no gallery embeddings; return them in RunResult")
    return result.gallery
