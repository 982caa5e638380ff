"""The synthetic study: its hulls by a second computation, its training by its laws, its command."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import linprog

from gspool.experiments import commands, tokens
from gspool.experiments.tokens import RANGE, TokenModel, TokenSettings, TokenTask, bags_of, hull_overlap
from gspool.provenance import read_result

TINY = TokenSettings(epochs=3, evaluate_every=1, samples_per_class=8, prototypes=8, lr=1e-2)


def trained(settings: TokenSettings) -> dict[str, Any]:
    found = tokens.train_tokens(asdict(settings))
    assert found is not None
    return found


def inside(point: np.ndarray, corners: np.ndarray) -> bool:
    """Whether a point is a convex combination of others, by a linear programme."""
    equal = np.vstack([corners.T, np.ones(len(corners))])
    return linprog(np.zeros(len(corners)), A_eq=equal, b_eq=np.append(point, 1.0)).status == 0


def test_hulls_overlap_as_a_linear_programme_says() -> None:
    draws = np.random.default_rng(3)
    labels = np.repeat(np.arange(6), 7)
    points = draws.uniform(-1, 1, (6, 2))[labels] + draws.normal(0, 0.35, (42, 2))
    expected = 0
    for first in range(6):
        for second in range(first + 1, 6):
            a, b = points[labels == first], points[labels == second]
            # A common point: weights over the corners of one and of the other that meet.
            equal = np.vstack([np.hstack([a.T, -b.T]), np.repeat([[1, 0], [0, 1]], 7, axis=1)])
            expected += linprog(np.zeros(14), A_eq=equal, b_eq=[0, 0, 1, 1]).status == 0
    strangers = [any(inside(points[i], points[labels == c]) for c in range(6) if c != labels[i]) for i in range(42)]
    found = hull_overlap(points, labels)
    assert 0 < expected < 15
    assert found == (expected, pytest.approx(np.mean(strangers)))


def test_training_is_repeatable_and_tokens_stay_in_their_range() -> None:
    settings = replace(TINY, pooling="gsp", lr=0.05, epochs=4)
    first, second = trained(settings), trained(settings)
    assert first == second
    learned = torch.tensor(first["geometry"]["tokens"])
    assert float(learned.abs().max()) == pytest.approx(RANGE)
    assert learned.shape == (68, 2)
    assert len(first["geometry"]["pooled"]) == 16 * 8


def test_batches_are_a_function_of_the_step() -> None:
    task = TokenTask(TINY)
    whole = [batch.rows.tolist() for batch in task.batches(0, 5)]
    assert [batch.rows.tolist() for batch in task.batches(3, 5)] == whole[3:]
    assert whole[0] != whole[1]


def test_average_pooling_gives_background_its_share_of_the_tokens() -> None:
    settings = replace(TINY, pooling="gap", epochs=1)
    test = bags_of(TokenTask(settings).test)
    expected = (test.samples >= test.first_background).double().mean()
    assert trained(settings)["on_background"] == pytest.approx(float(expected), abs=1e-6)
    # Nothing is normalised.
    model = TokenModel(5, settings)
    pooled = model.pool(torch.tensor([[0, 0, 3, 4]])).pooled
    torch.testing.assert_close(pooled[0], (2 * model.tokens[0] + model.tokens[3] + model.tokens[4]) / 4)


def test_training_separates_what_it_is_shown() -> None:
    found = trained(replace(TINY, pooling="gsp", epochs=25))
    assert found["map@r"] > found["curve"][0] + 0.1
    assert found["on_background"] < 0.45


def test_patience_counts_epochs_and_time_that_is_over_gives_nothing() -> None:
    assert trained(replace(TINY, lr=0.0, epochs=50, patience=3))["epochs"] == 4
    seldom = trained(replace(TINY, lr=0.0, epochs=50, patience=3, evaluate_every=2))
    assert (seldom["epochs"], len(seldom["curve"])) == (6, 3)
    assert tokens.train_tokens(asdict(TINY), seconds=1e-9) is None


def test_a_tiny_run_is_written_drawn_and_not_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["tokens", "--quick", "--device", "cpu", "--work", str(tmp_path)]
    assert commands.run("reproduce", [*words, "--seeds", "1"]) == 0
    results = tmp_path / "quick" / "results"
    assert read_result(results / "tokens.json")["value"]["shown_seed"] == 1
    assert (results / "images" / "tokens.png").stat().st_size > 5_000
    monkeypatch.setattr(tokens, "TokenTask", None)
    assert commands.run("reproduce", [*words, "--seeds", "1"]) == 0
