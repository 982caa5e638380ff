"""Losses by name: every name makes a working loss, every mistake is answered with the right names."""

from __future__ import annotations

import sys

import pytest
import torch

from gspool import losses


@pytest.mark.parametrize("name", [*losses.list(), "CircleLoss", "SoftTripleLoss", "SupConLoss", "xbm+MarginLoss"])
def test_every_name_makes_a_loss_that_learns(name):
    options = {"start": 0} if name.startswith("xbm+") else {}
    loss = losses.create(name, num_classes=6, dim=8, **options)
    labels = torch.arange(12) % 6
    for _ in range(2):
        raw = torch.randn(12, 8, requires_grad=True)
        value = loss(torch.nn.functional.normalize(raw), labels)
        value.backward()
        assert value.isfinite()
        assert raw.grad.abs().sum() > 0


def test_options_replace_the_preset():
    loss = losses.create("c2", 10, 4, preset="cars196", neg_margin=0.9)
    assert (loss.pos_margin, loss.neg_margin) == (0.2652, 0.9)


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (("trplet", 10, 4), {}, "did you mean triplet"),
        (("circleloss", 10, 4), {}, "did you mean CircleLoss"),
        (("xbm+", 10, 4), {}, "there is no loss ''"),
        (("c2", 0, 4), {}, "num_classes must be a positive integer, got 0"),
        (("c2", 10, 2.5), {}, "dim must be a positive integer, got 2.5"),
        ((None, 10, 4), {}, "named by a string"),
        (("c2", 10, 4, "cubs"), {}, "did you mean 'cub'"),
        (("c2", 10, 4), {"margin": 0.5}, r"no option 'margin'.*neg_margin, pos_margin"),
        (("pnca", 10, 4), {"temprature": 0.5}, "no option 'temprature', did you mean 'temperature'"),
        (("c1", 10, 4), {"memory_batches": 3}, "no option 'memory_batches'"),
        (("xbm+c1", 10, 4), {"memory_batch": 3}, "did you mean 'memory_batches'"),
    ],
)
def test_wrong_names_sizes_and_options_are_refused_with_the_right_ones(arguments, options, message):
    with pytest.raises(ValueError, match=message):
        losses.create(*arguments, **options)


def test_a_missing_loss_library_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "pytorch_metric_learning", None)
    with pytest.raises(ImportError, match=r"pip install 'gspool\[train\]'"):
        losses.create("c2", 10, 4)
