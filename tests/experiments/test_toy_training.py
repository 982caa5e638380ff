"""`make train` really trains: the layer finds what nobody pointed out to it."""

from __future__ import annotations

import pytest
import torch

from gspool.experiments import toy_training
from gspool.experiments.toy_training import average_pooling_error, random_pictures, train


def test_pictures_are_half_green_and_their_target_is_the_mean_of_the_rest() -> None:
    tokens, informative, target = random_pictures(torch.Generator().manual_seed(1))
    assert (informative.sum(1) == tokens.shape[1] // 2).all()
    for picture, known, wanted in zip(tokens[:5], informative, target, strict=False):
        chosen = [pixel for pixel, counts in zip(picture, known, strict=True) if counts]
        torch.testing.assert_close(wanted, sum(chosen) / len(chosen))


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_prototypes_learn_to_leave_green_out_from_any_start(seed: int) -> None:
    first, *_, last = train(seed, steps=60)
    assert first.found < 0.75
    assert last.found > 0.95
    assert last.error < 0.1 * average_pooling_error(seed)


def test_the_same_seed_gives_the_same_run() -> None:
    assert [*train(5, steps=4, every=2)] == [*train(5, steps=4, every=2)]


def test_it_prints_a_table(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(toy_training, "train", lambda: iter([toy_training.Progress(20, 0.027, 0.975)]))
    toy_training.main()
    assert "    20   0.027   0.975" in capsys.readouterr().out.splitlines()
