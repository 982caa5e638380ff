"""Folds are contiguous, disjoint and cover the classes."""

from __future__ import annotations

import pytest
import torch

from gspool.evaluation import PROTOCOLS, contiguous_folds


@pytest.mark.parametrize(("classes", "folds"), [(4, 4), (7, 4), (98, 4), (11318, 4), (3997, 4), (5, 5), (99, 5)])
def test_parts_are_disjoint_contiguous_and_nearly_equal(classes, folds):
    names = list(range(10, 10 + 3 * classes, 3))
    # Labels of images: in any order, and repeated.
    parts = contiguous_folds(torch.tensor(names).repeat(3).flip(0), folds)
    held_out = [part.validation_classes.tolist() for part in parts]
    assert [name for part in held_out for name in part] == names
    assert max(map(len, held_out)) - min(map(len, held_out)) <= 1
    for part in parts:
        assert sorted([*part.train_classes.tolist(), *part.validation_classes.tolist()]) == names


def test_rows_follow_their_classes():
    labels = torch.tensor([3, 1, 9, 1, 5, 3])
    rows = contiguous_folds(labels, 4)[1].rows(labels)
    assert rows.validation.tolist() == [0, 5]
    assert rows.train.tolist() == [1, 2, 3, 4]


def test_protocols_split_as_the_paper_says():
    labels = torch.arange(100)
    assert len(PROTOCOLS["fair"].runs()) == 12
    assert PROTOCOLS["fair"].fold(labels, 3).validation_classes.tolist() == list(range(75, 100))
    assert len(PROTOCOLS["tuning"].fold(labels, 0).train_classes) == 80
    everything = PROTOCOLS["conventional"].fold(labels, 0)
    assert (len(everything.train_classes), len(everything.validation_classes)) == (100, 0)
    with pytest.raises(ValueError, match="folds 0 to 3, got 4"):
        PROTOCOLS["fair"].fold(labels, 4)


@pytest.mark.parametrize(
    ("labels", "folds", "message"),
    [
        ([0, 1, 2], 4, "4 folds need at least 4 training classes, got 3"),
        ([0.5, 1.0], 2, "integers, got torch.float32"),
        ([[0, 1]], 2, r"shape \[N\]"),
        ([0, 1, 2], 1, "at least 2.*got 1"),
        ([0, 1, 2], 2.0, "at least 2.*got 2.0"),
    ],
)
def test_what_cannot_be_split(labels, folds, message):
    with pytest.raises(ValueError, match=message):
        contiguous_folds(labels, folds)
