"""Retrieval metrics against loops, against pytorch-metric-learning, and their laws."""

from __future__ import annotations

import copy
import json
import pickle

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pytorch_metric_learning.distances import CosineSimilarity, LpDistance
from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator
from pytorch_metric_learning.utils.inference import CustomKNN

from gspool.evaluation import retrieval_metrics

ROUNDING = 1e-12
REFERENCE = 1e-6
THEIR_NAMES = {"p@1": "precision_at_1", "p@r": "r_precision", "map@r": "mean_average_precision_at_r"}


def assert_equal_metrics(metrics, expected):
    assert list(metrics) == list(expected)
    assert dict(metrics) == pytest.approx(expected, abs=ROUNDING)


# Sizes on both sides of the switch from float64 to float32 products and from plain to grouped selection.
@pytest.mark.parametrize(
    ("rows", "classes", "dim"), [(2, 1, 1), (7, 3, 1), (63, 9, 5), (257, 60, 3), (700, 400, 16), (1100, 350, 4)]
)
@pytest.mark.parametrize("distance", ["l2", "cosine"])
def test_equals_a_loop(oracle, clusters, rows, classes, dim, distance):
    embeddings, labels = clusters(rows, classes, dim, seed=rows)
    expected, queries, lone = oracle(embeddings, labels, distance=distance)
    metrics = retrieval_metrics(embeddings, labels, distance=distance)
    assert_equal_metrics(metrics, expected)
    assert (metrics.queries, metrics.lone_queries, metrics.gallery) == (queries, lone, rows)


@pytest.mark.parametrize(("rows", "gallery_rows"), [(5, 1), (1, 40), (40, 31), (30, 900)])
def test_query_and_gallery_equal_a_loop(oracle, clusters, rows, gallery_rows):
    both, labels = clusters(rows + gallery_rows, 8, 6, seed=3)
    sides = both[:rows], labels[:rows], both[rows:], labels[rows:]
    expected, queries, lone = oracle(*sides)
    metrics = retrieval_metrics(*sides)
    assert_equal_metrics(metrics, expected)
    assert (metrics.queries, metrics.lone_queries, metrics.gallery) == (queries, lone, gallery_rows)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_every_precision_is_searched_exactly(oracle, clusters, dtype):
    # Half precision makes many equal distances, so the order of ties is tried as well.
    embeddings, labels = clusters(600, 150, 3)
    embeddings = embeddings.to(dtype)
    assert_equal_metrics(retrieval_metrics(embeddings, labels), oracle(embeddings, labels)[0])


# The oracle is a plain function and keeps nothing between examples.
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_small_integers_full_of_ties_equal_a_loop(oracle, data):
    rows = data.draw(st.integers(2, 24))
    entries = st.lists(st.integers(-2, 2), min_size=2 * rows, max_size=2 * rows)
    embeddings = torch.tensor(data.draw(entries), dtype=torch.float32).view(rows, 2)
    labels = torch.tensor(data.draw(st.lists(st.integers(-1, 3), min_size=rows, max_size=rows)))
    if max(labels.tolist().count(label) for label in labels.tolist()) < 2:
        labels[0] = labels[1]
    metrics = retrieval_metrics(embeddings, labels, ks=(1, 3, 50))
    assert_equal_metrics(metrics, oracle(embeddings, labels, ks=(1, 3, 50))[0])


def their_metrics(embeddings, labels, *gallery, distance):
    calculator = AccuracyCalculator(
        include=tuple(THEIR_NAMES.values()),
        k="max_bin_count",
        device=torch.device("cpu"),
        knn_func=CustomKNN(distance),
        kmeans_func=lambda *_: None,
    )
    theirs = calculator.get_accuracy(embeddings, labels, *gallery)
    return {ours: theirs[name] for ours, name in THEIR_NAMES.items()}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("name", "distance"),
    [("l2", LpDistance(normalize_embeddings=False)), ("cosine", CosineSimilarity())],
    ids=["l2", "cosine"],
)
def test_equals_pytorch_metric_learning(clusters, seed, name, distance):
    embeddings, labels = clusters(400 + 100 * seed, 40 + 60 * seed, 32, seed=seed)
    ours = retrieval_metrics(embeddings, labels, distance=name)
    theirs = their_metrics(embeddings, labels, distance=distance)
    assert {key: ours[key] for key in theirs} == pytest.approx(theirs, abs=REFERENCE)


def test_equals_pytorch_metric_learning_with_gallery_and_lone_queries(clusters):
    embeddings, labels = clusters(700, 60, 16, seed=9)
    queries, query_labels, gallery, gallery_labels = embeddings[:200], labels[:200], embeddings[200:], labels[200:]
    query_labels = query_labels.clone()
    query_labels[:17] = 1000
    ours = retrieval_metrics(queries, query_labels, gallery, gallery_labels)
    theirs = their_metrics(
        queries, query_labels, gallery, gallery_labels, distance=LpDistance(normalize_embeddings=False)
    )
    assert ours.lone_queries == 17
    assert {key: ours[key] for key in theirs} == pytest.approx(theirs, abs=REFERENCE)


POINTS = [0.0, 1.0, 2.0, 3.0]


@pytest.mark.parametrize(
    ("sides", "expected", "counts"),
    [
        # A perfect embedding, and a hopeless one: each point's pair lies on the far side of all others.
        (([0.0, 0.0, 1.0, 1.0], [4, 4, 7, 7]), (1, 1, 1, 1, 1), (4, 0, 4)),
        (([0.0, 1.0, 10.0, 11.0], [0, 1, 0, 1]), (0, 0, 0, 0, 1), (4, 0, 4)),
        # R = 2 relevant rows, found at ranks 2 and 3: only rank 2 counts, with precision 1/2.
        (([-1.0], [7], POINTS, [0, 7, 7, 0]), (0, 0.5, 0.25, 0, 1), (1, 0, 4)),
        # A query never finds itself, but does find its twin.
        (([0.0, 0.0, 9.0, 9.0], [0, 1, 0, 1]), (0, 0, 0, 0, 1), (4, 0, 4)),
        # In a gallery nothing is left out.
        ((POINTS, [0, 1, 2, 3], POINTS, [0, 1, 2, 3]), (1, 1, 1, 1, 1), (4, 0, 4)),
        # A lone query is left out but stays in the gallery, here between the pair.
        (([0.0, 2.0, 1.0], [0, 0, 1]), (0, 0, 0, 0, 1), (2, 1, 3)),
    ],
)
def test_metrics_by_hand(sides, expected, counts):
    sides = [torch.tensor(side)[:, None] if place % 2 == 0 else side for place, side in enumerate(sides)]
    metrics = retrieval_metrics(*sides, ks=(1, 3))
    assert dict(metrics) == dict(zip(("p@1", "p@r", "map@r", "r@1", "r@3"), expected, strict=True))
    assert (metrics.queries, metrics.lone_queries, metrics.gallery) == counts


def test_recall_grows_with_k_begins_at_p1_and_may_go_beyond_the_gallery(clusters):
    metrics = retrieval_metrics(*clusters(300, 60, 8), ks=(8, 1, 2, 4, 2, 299, 10_000))
    assert list(metrics) == ["p@1", "p@r", "map@r", "r@1", "r@2", "r@4", "r@8", "r@299", "r@10000"]
    recalls = [*metrics.values()][3:]
    assert recalls == sorted(recalls)
    assert metrics["p@1"] == metrics["r@1"]
    assert metrics["map@r"] <= metrics["p@r"]
    assert metrics["r@299"] == metrics["r@10000"] == 1.0
    assert list(retrieval_metrics(*clusters(30, 3, 4), ks=())) == ["p@1", "p@r", "map@r"]


def test_moving_scaling_and_renaming_change_nothing_and_the_order_of_rows_does_not_matter(clusters):
    embeddings, labels = clusters(500, 80, 8)
    expected = retrieval_metrics(embeddings, labels)
    assert retrieval_metrics(embeddings.double() * 2.0**-20 + 3.0, 1000 - 7 * labels) == expected
    order = torch.randperm(500, generator=torch.Generator().manual_seed(1))
    shuffled = retrieval_metrics(embeddings[order], labels[order])
    assert dict(shuffled) == pytest.approx(dict(expected), abs=ROUNDING)


@pytest.mark.parametrize("scale", [1e-300, 1e-160, 1e160, 1e300])
def test_numbers_whose_squares_leave_the_range_of_float64(clusters, scale):
    embeddings, labels = clusters(60, 6, 3)
    extreme = embeddings.double() * scale
    for distance in ("l2", "cosine"):
        expected = retrieval_metrics(embeddings.double(), labels, distance=distance)
        assert retrieval_metrics(extreme, labels, distance=distance) == expected


def test_inputs_may_be_arrays_lists_or_need_gradients_and_do_not_change(clusters):
    embeddings, labels = clusters(60, 6, 3)
    kept, kept_labels = embeddings.clone(), labels.clone()
    expected = retrieval_metrics(embeddings, labels)
    assert torch.equal(embeddings, kept)
    assert torch.equal(labels, kept_labels)
    array = embeddings.numpy().copy()
    array.setflags(write=False)
    assert retrieval_metrics(array, labels.numpy()) == expected
    assert retrieval_metrics(embeddings.tolist(), labels.tolist()) == expected
    assert retrieval_metrics(embeddings.requires_grad_(), labels.to(torch.uint8)) == expected


def test_the_result_reads_like_a_dictionary(clusters):
    metrics = retrieval_metrics(*clusters(30, 3, 4), ks=(1,))
    assert {**metrics} == dict(metrics.items())
    assert json.loads(json.dumps(metrics.as_dict()))["queries"] == 30
    assert "map@r" in repr(metrics)
    assert "30 queries" in str(metrics)
    assert pickle.loads(pickle.dumps(metrics)) == copy.deepcopy(metrics) == metrics
    with pytest.raises(KeyError, match=r"r@16.*there are p@1"):
        metrics["r@16"]
