"""Weights that are rounded and stepped together learn what they learn one by one."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from experiments.resident.folded_steps import assert_alike, learned, network, optimiser_of
from experiments.resident.tiny_sets import tiny
from gspool.experiments.benchmark.stand_in import striped
from gspool.experiments.resident import fold_frozen_norms
from gspool.experiments.resident.rounded_weights import RoundedWeights
from gspool.experiments.resident.step import Learner
from gspool.experiments.resident.views import BatchPlan
from gspool.training.build import build_loss, build_model

KINDS = [torch.optim.Adam, torch.optim.AdamW]


@pytest.mark.parametrize("kind", KINDS)
# Gradients here are far longer than 1, so that they are bounded in every step.
@pytest.mark.parametrize("clip", [0.0, 1.0])
def test_steps_are_those_of_the_optimiser(kind: type[torch.optim.Optimizer], clip: float) -> None:
    ours, theirs = (learned(kind, clip, together=together) for together in (True, False))
    assert_alike(ours, theirs)
    assert not torch.equal(learned(kind, clip, together=True, steps=3)["0.weight"], ours["0.weight"])


def test_rounded_weights_are_used_for_a_while_alone() -> None:
    model = copy.deepcopy(network())
    fold_frozen_norms(model)
    optimiser = optimiser_of(model, torch.optim.Adam)
    images = torch.randn(2, 3, 7, 7)
    model(images).sum().backward()
    optimiser.step()
    plain = model(images)
    rounded = RoundedWeights(model, optimiser, torch.float32)
    with rounded.used():
        torch.testing.assert_close(model(images), plain)
        with torch.no_grad():
            model[0].weight.mul_(2)
        torch.testing.assert_close(model(images), plain)
    assert not torch.allclose(model(images), plain)


def test_what_does_not_fit_is_refused() -> None:
    model = copy.deepcopy(network())
    adam = optimiser_of(model, torch.optim.Adam)
    with pytest.raises(ValueError, match="where folded convolutions learn"):
        RoundedWeights(model, adam, torch.float32)
    fold_frozen_norms(model)
    with pytest.raises(ValueError, match="once the optimiser has stepped"):
        RoundedWeights(model, adam, torch.float32)
    apart = torch.optim.Adam([{"params": [model[0].weight]}, {"params": [model[2].weight, model[4].weight]}])
    with pytest.raises(ValueError, match="in one group of Adam"):
        RoundedWeights(model, apart, torch.float32)
    with pytest.raises(ValueError, match="in one group of Adam"):
        RoundedWeights(model, torch.optim.SGD(model.parameters()), torch.float32)
    for part in model:
        if isinstance(part, nn.Conv2d):
            part.weight.requires_grad_(False)
    with pytest.raises(ValueError, match="where folded convolutions learn"):
        RoundedWeights(model, adam, torch.float32)


def test_a_learner_learns_the_same_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = tiny(precision="bf16-mixed")
    settings.model.backbone, settings.model.backbone_options, settings.model.freeze = "keras/resnet50", {}, "batchnorm"
    settings.optimiser.lr = 1e-6
    images, found = striped(8, 6), []
    for together in (True, False):
        torch.manual_seed(0)
        model = build_model(settings)
        fold_frozen_norms(model.backbone)
        model.freeze("batchnorm")
        loss = build_loss(settings.loss, 8, model.out_dim, settings.data.batch_size, 0)
        learner = Learner(model, loss, settings).train()
        if not together:
            monkeypatch.setattr(learner, "_taken_together", lambda device: None)
        plan = BatchPlan(images, settings.data, 0)
        places = [plan.rows_of(step) for step in range(6)]
        losses = [learner.learn(images.pixels[rows], images.labels[rows], step) for step, rows in enumerate(places)]
        assert (learner.rounded is not None) == together
        found.append([float(parts.total.detach()) for parts in losses])
    assert found[0] == pytest.approx(found[1], rel=1e-4)
