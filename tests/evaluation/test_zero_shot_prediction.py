"""The zero-shot prediction test against numpy, and what it must give for known cases."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gspool.evaluation import zero_shot_prediction


def histograms(rows, attributes, seed=0):
    return torch.softmax(2 * torch.randn(rows, attributes, generator=torch.Generator().manual_seed(seed)), dim=1)


def by_hand(attributes, embeddings, labels, splits, seed, ridge):
    """Plain numpy, one split and one class at a time; A in the form of Eq. (4.7), with samples as columns."""
    attributes, embeddings, labels = attributes.double().numpy(), embeddings.double().numpy(), labels.numpy()
    names = sorted(set(labels.tolist()))
    z = {name: attributes[labels == name].mean(0) for name in names}
    means = {name: embeddings[labels == name].mean(0) for name in names}
    draws = torch.Generator().manual_seed(seed)
    table = []
    for _ in range(splits):
        order = [names[place] for place in torch.randperm(len(names), generator=draws).tolist()]
        seen, unseen = order[: len(names) // 2], order[len(names) // 2 :]
        Z, U = np.stack([z[name] for name in seen], 1), np.stack([means[name] for name in seen], 1)
        A = U @ np.linalg.inv(Z.T @ Z + ridge * np.eye(len(seen))) @ Z.T
        scores = []
        for name in unseen:
            guess = A @ z[name]
            l2 = {other: np.linalg.norm(guess - means[other]) for other in unseen}
            angle = {
                other: -(guess @ means[other]) / np.linalg.norm(guess) / np.linalg.norm(means[other])
                for other in unseen
            }
            ranks = [sorted(unseen, key=measure.get).index(name) + 1 for measure in (l2, angle)]
            scores.append([ranks[0] == 1, ranks[1] == 1, 1 / ranks[0], 1 / ranks[1]])
        table.append(np.mean(scores, 0))
    return np.mean(table, 0), np.std(table, 0)


# Fewer and more attributes than classes to fit: the primal and the dual Gram matrix.
@pytest.mark.parametrize(("classes", "attributes"), [(10, 8), (10, 3), (7, 5), (4, 1), (24, 6)])
def test_equals_numpy(classes, attributes):
    draws = torch.Generator().manual_seed(classes)
    labels = torch.arange(5 * classes) % classes * 3 - 4
    z = histograms(classes, attributes)[(labels + 4) // 3] + 0.05 * histograms(5 * classes, attributes, seed=1)
    embeddings = z @ torch.randn(attributes, 6, generator=draws) + 0.3 * torch.randn(5 * classes, 6, generator=draws)
    result = zero_shot_prediction(z, embeddings, labels, splits=70, seed=5, ridge=0.05)
    means, deviations = by_hand(z, embeddings, labels, 70, 5, 0.05)
    figures = [result.accuracy_l2, result.accuracy_cosine, result.map_l2, result.map_cosine]
    assert [one.mean for one in figures] == pytest.approx(means, abs=1e-12)
    assert [one.std for one in figures] == pytest.approx(deviations, abs=1e-12)
    assert result.chance == 1 / (classes - classes // 2)


def test_attributes_that_determine_the_embedding_predict_it_and_those_that_say_nothing_guess():
    z, labels = histograms(10, 4), torch.arange(10)
    embeddings = z @ torch.randn(4, 16, generator=torch.Generator().manual_seed(1))
    result = zero_shot_prediction(z, embeddings, labels, splits=200, ridge=1e-10)
    assert result.accuracy_l2.mean > 0.99
    assert result.map_cosine.mean > 0.99
    result = zero_shot_prediction(torch.full((10, 4), 0.25), embeddings, labels, splits=500)
    assert result.accuracy_l2 == pytest.approx((result.chance, 0.0))


def test_the_seed_decides_the_splits():
    z, labels = histograms(40, 8), torch.arange(40) % 10
    embeddings = torch.randn(40, 16, generator=torch.Generator().manual_seed(1))
    first = zero_shot_prediction(z, embeddings, labels, splits=30, seed=1)
    assert zero_shot_prediction(z, embeddings, labels, splits=30, seed=1) == first
    assert zero_shot_prediction(z, embeddings, labels, splits=30, seed=2) != first


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attributes": torch.ones(11, 4)}, "same images, got 11 and 12"),
        ({"attributes": torch.full((12, 4), torch.nan)}, "attributes must be finite"),
        ({"embeddings": torch.ones(12)}, r"shape \[N, D\]"),
        ({"labels": torch.arange(12) % 3}, "at least 4 classes, got 3"),
        ({"labels": torch.arange(12.0)}, "integers"),
        ({"ridge": 0.0}, "ridge must be positive"),
        ({"ridge": torch.nan}, "ridge must be positive"),
        ({"splits": 0}, "at least 1, got 0"),
        ({"splits": 2.5}, "at least 1, got 2.5"),
    ],
)
def test_what_cannot_be_tested(changes, message):
    good = {"attributes": histograms(12, 4), "embeddings": torch.ones(12, 3), "labels": torch.arange(12) % 6}
    with pytest.raises(ValueError, match=message):
        zero_shot_prediction(**{**good, **changes})
