from __future__ import annotations

import numpy as np
import pytest

from gspool import data


def test_tokens_are_of_the_class_or_of_the_background():
    study = data.create("tokens", samples_per_class=20)
    assert (len(study), study.num_classes, study.images.num_tokens) == (320, 16, 68)
    for sample, label in study:
        assert sample.shape == (50,)
        assert set(sample.tolist()) <= {*range(4 * label, 4 * label + 4), 64, 65, 66, 67}


def test_shares_follow_the_paper_and_tokens_of_a_kind_are_drawn_alike():
    study = data.create("tokens", samples_per_class=500)
    shares = (study.images.samples < study.images.first_background).double().mean(1).numpy()
    assert shares.mean() == pytest.approx(0.5, abs=0.005)
    assert shares.std() == pytest.approx(0.1, abs=0.005)
    # A normal distribution has 68.3 % within one deviation; counts of 50 are steps of 0.02.
    assert np.mean(np.abs(shares - 0.5) < 0.11) == pytest.approx(0.729, abs=0.02)
    classes, background = study.images.samples.flatten().bincount(minlength=68).double().split([64, 4])
    assert (classes / classes.mean() - 1).abs().max() < 0.1
    assert (background / background.mean() - 1).abs().max() < 0.03


@pytest.mark.parametrize("mean", [3.0, -3.0])
def test_a_share_outside_the_sample_is_kept_inside(mean):
    study = data.create("tokens", samples_per_class=10, mixing_mean=mean)
    assert bool(((study.images.samples < 64) == (mean > 0)).all())


def test_splits_and_seeds_draw_anew_and_seeds_repeat():
    def drawn(split, seed):
        return str(data.create("tokens", samples_per_class=2, split=split, seed=seed).images.samples.tolist())

    assert drawn("train", 1) == drawn("train", 1)
    assert len({drawn(split, seed) for split in ("train", "validation", "test") for seed in (0, 1, 2)}) == 9


@pytest.mark.parametrize(
    "name", ["num_classes", "tokens_per_class", "background_tokens", "tokens_per_sample", "samples_per_class"]
)
def test_numbers_must_be_positive(name):
    with pytest.raises(ValueError, match=f"{name} must be at least 1, got 0"):
        data.create("tokens", **{name: 0})
