"""Results class by class: how well each is found, and which classes are mistaken for each other."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

import torch

from gspool.evaluation.neighbours import nearest_neighbours
from gspool.evaluation.retrieval import count_relevant

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor

    from gspool.evaluation.retrieval import RetrievalMetrics


class ClassResult(NamedTuple):
    """The mean P@1 and MAP@R of the queries of one class, and how many there are."""

    label: int
    queries: int
    p_at_1: float
    map_at_r: float


class ConfusedPair(NamedTuple):
    """Two classes, how many queries of either have their nearest neighbour in the other, and the closest example.

    ``mistakes`` is out of ``queries`` of both. ``query`` and ``found`` are rows of the queries and of the gallery.
    """

    label: int
    taken_for: int
    mistakes: int
    queries: int
    query: int
    found: int


def class_results(metrics: RetrievalMetrics, labels: Int[Tensor, " Q"]) -> list[ClassResult]:
    """Return the results of every class with a query that counts, the worst MAP@R first.

    Example:
        >>> from gspool.evaluation import retrieval_metrics
        >>> points, labels = torch.tensor([[0.0], [0.1], [1.0], [5.0], [1.1]]), torch.tensor([0, 0, 1, 1, 0])
        >>> [result.label for result in class_results(retrieval_metrics(points, labels), labels)]
        [1, 0]
    """
    first, precision = metrics.of_queries("p@1"), metrics.of_queries("map@r")
    results = []
    for label in labels[~first.isnan()].unique().tolist():
        own = (labels == label) & ~first.isnan()
        results.append(ClassResult(label, int(own.sum()), float(first[own].mean()), float(precision[own].mean())))
    return sorted(results, key=lambda result: result.map_at_r)


def confused_pairs(
    embeddings: Float[Tensor, "Q D"],
    labels: Int[Tensor, " Q"],
    gallery: Float[Tensor, "G D"] | None = None,
    gallery_labels: Int[Tensor, " G"] | None = None,
    *,
    count: int = 5,
    device: torch.device | str | None = None,
) -> list[ConfusedPair]:
    """Return the pairs of classes with the most queries whose nearest neighbour is of the other class.

    Queries that are alone in their class are left out, as metrics leave them out.

    Example:
        >>> points = torch.tensor([[0.0], [0.1], [9.0], [9.1], [9.4]])
        >>> [pair[:4] for pair in confused_pairs(points, torch.tensor([0, 0, 1, 0, 1]))]
        [(1, 0, 3, 5)]
    """
    nearest = nearest_neighbours(embeddings, gallery, k=1, device=device)
    rows, distances = nearest.indices.flatten().cpu(), nearest.distances.flatten().cpu()
    found_labels = labels if gallery_labels is None else gallery_labels
    found, counted = found_labels[rows], count_relevant(labels, found_labels, itself=gallery is None) > 0
    wrong = (counted & (found != labels)).nonzero().flatten()
    counts: Counter[frozenset[int]] = Counter()
    examples: dict[frozenset[int], int] = {}
    # The closest first, so that the first of a pair is its example.
    for query in wrong[distances[wrong].argsort(stable=True)].tolist():
        pair = frozenset((int(labels[query]), int(found[query])))
        counts[pair] += 1
        examples.setdefault(pair, query)
    pairs = []
    for pair, mistakes in counts.most_common(count):
        query = examples[pair]
        queries = int((counted & torch.isin(labels, torch.tensor([*pair]))).sum())
        pairs.append(ConfusedPair(int(labels[query]), int(found[query]), mistakes, queries, query, int(rows[query])))
    return pairs
