"""The toy figure, by a second computation and by the laws of the problem."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.optimize import brentq

from gspool.experiments import commands, toy
from gspool.experiments.toy import EPSILONS, MUS, SIDE, selections, summary, toy_picture
from gspool.provenance import read_result


def weights(mu: float, epsilon: float | None) -> torch.Tensor:
    (found,) = [each.weights for each in selections(toy_picture()) if (each.mu, each.epsilon) == (mu, epsilon)]
    return found


def test_half_of_the_picture_is_red_or_blue_and_looks_like_it() -> None:
    picture = toy_picture()
    assert picture.pixels.shape == (SIDE * SIDE, 3)
    assert picture.informative.sum() == SIDE * SIDE // 2
    brightest = picture.pixels.argmax(1)
    assert torch.equal(brightest != 1, picture.informative)
    assert (brightest == 0).sum() == (brightest == 2).sum() == SIDE * SIDE // 4
    assert 0 <= picture.pixels.min() <= picture.pixels.max() <= 1


@pytest.mark.parametrize("mu", MUS)
@pytest.mark.parametrize("epsilon", EPSILONS)
def test_smoothed_weights_equal_a_plain_computation(mu: float, epsilon: float) -> None:
    pixels = toy_picture().pixels.double().numpy()
    pixels = pixels / np.maximum(1, np.linalg.norm(pixels, axis=1))[:, None]
    affinity = [sum(np.exp(-epsilon * np.linalg.norm(f - w)) for w in np.eye(3)[[0, 2]]) for f in pixels]

    def share(t: float) -> np.ndarray:
        return np.array([t * k / (1 + t * k) for k in affinity])

    log_t = brentq(lambda log_t: share(np.exp(log_t)).mean() - mu, -50, 300, xtol=1e-12)
    expected = share(np.exp(log_t)) / (len(pixels) * mu)
    np.testing.assert_allclose(
        weights(mu, epsilon).numpy(), expected, atol=2e-6 * max(1, epsilon / 10) * expected.max()
    )


def test_the_linear_programme_drops_informative_pixels_and_smoothing_keeps_them() -> None:
    picture = toy_picture()
    assert (weights(0.2, None)[picture.informative] == 0).sum() == 30
    # Every red and blue pixel has more weight than any green one.
    smoothed = weights(0.2, 5.0)
    assert smoothed[picture.informative].min() > 10 * smoothed[~picture.informative].max()
    # A larger epsilon is sharper, and tends to the linear programme.
    in_use = [float(1 / weights(0.2, epsilon).square().sum()) for epsilon in (*EPSILONS, None)]
    assert in_use == sorted(in_use, reverse=True)
    assert in_use[-1] == pytest.approx(20)


def test_the_right_mu_finds_exactly_red_and_blue() -> None:
    picture = toy_picture()
    for epsilon in (20.0, 100.0, None):
        torch.testing.assert_close(weights(0.5, epsilon), picture.informative / 50, atol=1e-4, rtol=0)
    row = summary(picture, toy.Selection(0.5, None, picture.informative / 50))
    assert (row["pixels in use"], row["weight on red and blue"], row["weight on green"]) == (50, 1, 0)


def test_the_run_writes_a_figure_and_a_result_that_agrees_with_the_published_one(
    tmp_path: Path, project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert commands.run("reproduce", ["toy"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "written: results/toy.json, docs/images/toy.png"
    assert Path("docs/images/toy.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    record, published = read_result(Path("results/toy.json")), read_result(project / "results/toy.json")
    assert (record["command"], record["seeds"]) == ("gspool reproduce toy --device cpu", [toy.SEED])
    assert len(record["value"]) == len(MUS) * (len(EPSILONS) + 1)
    for row, known in zip(record["value"], published["value"], strict=True):
        assert row == pytest.approx(known, abs=1e-3) if isinstance(row["epsilon"], float) else row == known
