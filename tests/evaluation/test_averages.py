"""Averages of runs, and all combinations of models, by hand."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from gspool.evaluation import RunResult, concatenate_embeddings, fair_average, mean_and_std, separate_average


def runs_of(labels, folds, repeats, dim=3, noise=1.5):
    """Make random models of a test set; their metrics are arbitrary numbers, to tell them from measured ones."""
    results = {}
    for fold, repeat in itertools.product(range(folds), range(repeats)):
        draws = torch.Generator().manual_seed(100 * fold + repeat)
        centres = torch.randn(int(labels.max()) + 1, dim, generator=draws)
        vectors = centres[labels] + noise * torch.randn(len(labels), dim, generator=draws)
        results[fold, repeat] = RunResult(vectors, {"p@1": (3 * fold + repeat) / 20, "map@r": 0.9**fold * 0.1**repeat})
    return results


def joined_by_hand(parts):
    rows = []
    for vectors in zip(*(part.double().numpy() for part in parts), strict=True):
        long = np.concatenate([vector / np.linalg.norm(vector) for vector in vectors])
        rows.append(long / np.linalg.norm(long))
    return torch.from_numpy(np.stack(rows))


def test_eighty_one_combinations_by_hand(oracle):
    labels = torch.arange(24) % 6
    runs = runs_of(labels, folds=4, repeats=3)
    average = fair_average(runs, labels)
    assert len(average.combinations) == 81
    separate, concatenated = [], []
    choices = itertools.product(range(3), range(3), range(3), range(3))
    for combination, (a, b, c, d) in zip(average.combinations, choices, strict=True):
        chosen = [runs[0, a], runs[1, b], runs[2, c], runs[3, d]]
        separate.append(sum(run.metrics["map@r"] for run in chosen) / 4)
        concatenated.append(oracle(joined_by_hand([run.embeddings for run in chosen]), labels)[0])
        assert combination.repeats == (a, b, c, d)
        assert combination.separate["map@r"] == pytest.approx(separate[-1], abs=1e-12)
        assert combination.concatenated == pytest.approx(concatenated[-1], abs=1e-12)
    assert average.separate["map@r"] == pytest.approx((np.mean(separate), np.std(separate)), abs=1e-12)
    assert separate_average({place: run.metrics for place, run in runs.items()}) == average.separate
    for name, value in average.concatenated.items():
        column = [one[name] for one in concatenated]
        assert value == pytest.approx((np.mean(column), np.std(column)), abs=1e-12)


def test_a_gallery_is_joined_like_the_queries(oracle):
    labels, gallery_labels = torch.arange(9) % 3, torch.arange(12) % 3
    queries = runs_of(labels, folds=2, repeats=1)
    galleries = runs_of(gallery_labels, folds=2, repeats=1)
    runs = {pair: run._replace(gallery=galleries[pair].embeddings) for pair, run in queries.items()}
    average = fair_average(runs, labels, gallery_labels, ks=(1,))
    sides = [joined_by_hand([side[fold, 0].embeddings for fold in range(2)]) for side in (queries, galleries)]
    expected = oracle(sides[0], labels, sides[1], gallery_labels, ks=(1,))[0]
    assert average.combinations[0].concatenated == pytest.approx(expected, abs=1e-12)
    with pytest.raises(ValueError, match="no gallery embeddings"):
        fair_average(queries, labels, gallery_labels)


def test_every_model_weighs_alike_in_a_concatenation():
    small, large = torch.tensor([[1e-3, 0.0]]), torch.tensor([[0.0, 1e3, 0.0]])
    joined = concatenate_embeddings([small, large.half()])
    torch.testing.assert_close(joined, torch.tensor([[1.0, 0.0, 0.0, 1.0, 0.0]]) / 2**0.5)


@pytest.mark.parametrize(
    ("average", "told"),
    [
        (lambda: separate_average({pair: {"p@1": 0.1} for pair in ((0, 0), (0, 1), (1, 1))}), r"\(1, 0\).*missing"),
        (lambda: fair_average({}, torch.arange(12)), "missing"),
        (lambda: mean_and_std([{"p@1": 0.1}, {"p@1": 0.2, "map@r": 0.3}]), r"\['p@1'\] and \['map@r', 'p@1'\]"),
        (lambda: mean_and_std([]), "at least one run"),
        (lambda: concatenate_embeddings([torch.ones(3, 2), torch.ones(2, 2)]), r"\[3, 2\] rows"),
    ],
)
def test_missing_runs_and_runs_measured_differently_are_not_averaged(average, told):
    with pytest.raises(ValueError, match=told):
        average()


def test_mean_and_deviation_of_the_population():
    values = [0.1, 0.4, 0.55]
    assert mean_and_std([{"p@1": one} for one in values])["p@1"] == pytest.approx((np.mean(values), np.std(values)))
    assert mean_and_std([{"p@1": 0.3}])["p@1"] == (0.3, 0.0)
    assert str(mean_and_std([{"p@1": 0.25}])["p@1"]) == "0.2500 ± 0.0000"
