"""What cannot be evaluated is refused, and the message says why."""

from __future__ import annotations

import math

import pytest
import torch

from gspool.evaluation import nearest_neighbours, retrieval_metrics

GOOD = torch.arange(12.0).view(6, 2)
LABELS = torch.tensor([0, 0, 1, 1, 2, 2])
ZERO = torch.tensor([[1.0, 1.0], [0.0, 0.0]])


@pytest.mark.parametrize(
    ("embeddings", "message"),
    [
        (torch.ones(6), r"shape \[N, D\].*got \(6,\).*vectors\[None\]"),
        (torch.ones(6, 2, 7, 7), r"got \(6, 2, 7, 7\).*pool feature maps"),
        (torch.ones(0, 2), r"at least one row.*got shape \(0, 2\)"),
        (torch.ones(6, 0), r"at least one row.*got shape \(6, 0\)"),
        (torch.ones(6, 2, dtype=torch.int64), r"floating point, got torch.int64.*float\(\)"),
        (torch.ones(6, 2, dtype=torch.complex64), "floating point, got torch.complex64"),
        ("pictures", "got str"),
        ([[1.0, 2.0], [3.0]], "got list"),
        (None, "got NoneType"),
    ],
)
def test_embeddings_of_a_wrong_kind(embeddings, message):
    with pytest.raises(ValueError, match=message):
        retrieval_metrics(embeddings, LABELS)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_embeddings_that_are_not_finite_are_counted_and_named(bad):
    broken = GOOD.clone()
    broken[[3, 5], 1] = bad
    with pytest.raises(ValueError, match=r"2 of 6 rows.*first at row 3"):
        retrieval_metrics(broken, LABELS)
    with pytest.raises(ValueError, match=r"gallery must be finite.*row 3"):
        retrieval_metrics(GOOD, LABELS, broken, LABELS)


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((GOOD, LABELS.float()), {}, r"integers, got torch.float32.*long\(\)"),
        ((GOOD, LABELS[:5]), {}, "each of the 6 embeddings, got 5"),
        ((GOOD, LABELS[:, None]), {}, r"shape \[N\].*got \(6, 1\)"),
        ((GOOD, ["cat"] * 6), {}, "number the classes"),
        ((GOOD, None), {}, "got NoneType"),
        ((GOOD, LABELS, GOOD), {}, "gallery_labels is missing"),
        ((GOOD, LABELS, None, LABELS), {}, "but gallery is missing"),
        ((GOOD, LABELS, torch.ones(6, 3), LABELS), {}, "queries have 2 columns and the gallery has 3"),
        ((GOOD, torch.arange(6)), {}, "none of the 6 queries"),
        ((GOOD, LABELS, GOOD, LABELS + 10), {}, "none of the 6 queries"),
        ((GOOD[:1], LABELS[:1]), {}, "none of the 1 queries"),
        ((ZERO, [0, 0]), {"distance": "cosine"}, "row 1 of the queries is zero"),
        ((GOOD[1:], LABELS[1:], ZERO, [0, 1]), {"distance": "cosine"}, "row 1 of the gallery is zero"),
        ((GOOD, LABELS), {"distance": "L1"}, "'l2' or 'cosine', got 'L1'"),
        *(((GOOD, LABELS), {"ks": ks}, "integer") for ks in [(0,), (1, -2), (1.5,), (True,), 4, "48"]),
        *(((GOOD, LABELS), {"memory": memory}, "number of bytes") for memory in [0, -1, 1.5, True, "1GB"]),
    ],
)
def test_labels_sides_and_numbers_that_do_not_fit(arguments, options, message):
    with pytest.raises(ValueError, match=message):
        retrieval_metrics(*arguments, **options)


def test_too_little_memory_says_how_much_is_needed():
    with pytest.raises(ValueError, match=r"give at least (\d+)") as refusal:
        nearest_neighbours(GOOD, k=2, memory=100)
    enough = int(str(refusal.value).rsplit(" ", 1)[1])
    assert nearest_neighbours(GOOD, k=2, memory=enough).indices.shape == (6, 2)
    with pytest.raises(ValueError, match="give at least"):
        nearest_neighbours(GOOD, k=2, memory=enough - 1)


def test_neighbours_of_nobody():
    with pytest.raises(ValueError, match="alone has no neighbour"):
        nearest_neighbours(GOOD[:1])
    for k in (0, -1, 2.0, True):
        with pytest.raises(ValueError, match="number of neighbours"):
            nearest_neighbours(GOOD, k=k)
