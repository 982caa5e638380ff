"""Results by class, intervals and thresholds against plain loops over pairs."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch.nn.functional import cosine_similarity

from gspool.evaluation import calibrate_threshold, class_bootstrap, class_results, confused_pairs, retrieval_metrics


def test_classes_average_their_own_queries_and_make_up_the_whole(clusters):
    embeddings, labels = clusters(60, 7, 4)
    metrics = retrieval_metrics(embeddings, labels)
    results = class_results(metrics, labels)
    assert [result.map_at_r for result in results] == sorted(result.map_at_r for result in results)
    total = sum(result.queries * result.p_at_1 for result in results)
    assert total / metrics.queries == pytest.approx(metrics["p@1"])


def test_a_lone_query_has_no_score():
    metrics = retrieval_metrics(torch.tensor([[0.0], [1.0], [5.0]]), [0, 0, 1])
    assert metrics.of_queries("p@1").isnan().tolist() == [False, False, True]
    assert [result.label for result in class_results(metrics, torch.tensor([0, 0, 1]))] == [0]


@pytest.mark.parametrize("apart", [False, True])
def test_lone_queries_are_confused_with_nothing(apart):
    points, labels = torch.tensor([[0.0], [0.1], [5.0], [5.3], [5.4]]), torch.tensor([0, 0, 1, 1, 2])
    # The last is alone in its class; its neighbour is a query that finds it first.
    gallery, of_gallery = (points + 0.01, labels.clamp(max=1)) if apart else (None, None)
    pairs = confused_pairs(points, labels, gallery, of_gallery)
    assert [pair[:4] for pair in pairs] == ([] if apart else [(1, 2, 1, 2)])


@pytest.mark.parametrize("apart", [False, True])
def test_confused_pairs_are_counted_both_ways(clusters, apart):
    embeddings, labels = clusters(80, 6, 3)
    sides = (embeddings[:40], labels[:40], embeddings[40:], labels[40:]) if apart else (embeddings, labels)
    gallery, found_labels = (sides[2], sides[3]) if apart else (embeddings, labels)
    counts: dict[frozenset, int] = {}
    distances = torch.cdist(sides[0], gallery)
    if not apart:
        distances.fill_diagonal_(torch.inf)
    for query, nearest in enumerate(distances.argmin(1).tolist()):
        if sides[1][query] != found_labels[nearest]:
            pair = frozenset((int(sides[1][query]), int(found_labels[nearest])))
            counts[pair] = counts.get(pair, 0) + 1
    pairs = confused_pairs(*sides, count=100)
    assert {frozenset((pair.label, pair.taken_for)): pair.mistakes for pair in pairs} == counts
    for pair in pairs:
        assert (int(sides[1][pair.query]), int(found_labels[pair.found])) == (pair.label, pair.taken_for)
        assert distances[pair.query, pair.found] == distances[pair.query].min()


def test_an_interval_covers_the_truth_about_as_often_as_it_says_and_is_seeded():
    covered = 0
    for draw in range(60):
        generator = torch.Generator().manual_seed(draw)
        means = torch.rand(40, generator=generator)  # of classes, 0.5 on average
        scores = (means[:, None] + 0.1 * torch.randn(40, 5, generator=generator)).flatten()[:, None]
        low, high = class_bootstrap(scores, torch.arange(40).repeat_interleave(5), draws=200)[0]
        covered += int(low <= 0.5 <= high)
    assert 51 <= covered <= 60
    classes = torch.arange(40).repeat_interleave(5)
    assert torch.equal(class_bootstrap(scores, classes), class_bootstrap(scores, classes))


def brute_force(embeddings, labels, similarity: float) -> tuple[float, float]:
    right = wrong = missed = 0
    for a, b in itertools.combinations(range(len(labels)), 2):
        same, called = labels[a] == labels[b], cosine_similarity(embeddings[a], embeddings[b], dim=0) >= similarity
        right, wrong, missed = right + int(same & called), wrong + int(~same & called), missed + int(same & ~called)
    return right / (right + wrong), right / (right + missed)


def test_a_threshold_has_the_precision_and_recall_that_it_says(clusters):
    embeddings, labels = clusters(40, 5, 6)
    best = calibrate_threshold(embeddings, labels)
    assert (best.precision, best.recall) == pytest.approx(brute_force(embeddings, labels, best.similarity))
    for similarity in (0.2, 0.5, 0.8):
        other = calibrate_threshold(embeddings, labels, similarity=similarity)
        assert (other.precision, other.recall) == pytest.approx(brute_force(embeddings, labels, similarity))
        assert other.f1 <= best.f1
    precise = calibrate_threshold(embeddings, labels, precision=0.9)
    assert precise.precision >= 0.9 > calibrate_threshold(embeddings, labels, similarity=-1.0).precision
    assert precise.recall <= calibrate_threshold(embeddings, labels, precision=0.5).recall
    for wanted in (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9):
        chosen = calibrate_threshold(embeddings, labels, precision=wanted)
        assert calibrate_threshold(embeddings, labels, similarity=chosen.similarity) == chosen


def test_a_threshold_needs_pairs_of_both_kinds():
    with pytest.raises(ValueError, match="pairs of one class"):
        calibrate_threshold(torch.eye(3), [0, 1, 2])
    with pytest.raises(ValueError, match="pairs of two classes"):
        calibrate_threshold(torch.eye(3), [1, 1, 1])
    with pytest.raises(ValueError, match=r"\(0, 1\]"):
        calibrate_threshold(torch.eye(3), [0, 0, 1], precision=1.5)
