"""Steps that a GPU repeats from a graph are the steps that are made one by one."""

from __future__ import annotations

import copy
from typing import Literal

import pytest
import torch

from experiments.resident.tiny_sets import tiny
from gspool.experiments.benchmark.stand_in import striped
from gspool.experiments.resident import fold_frozen_norms, fuse_activations, fuse_stem
from gspool.experiments.resident.captured_learner import CapturedLearner, can_be_captured, own_stream
from gspool.experiments.resident.step import Learner
from gspool.experiments.resident.views import BatchPlan
from gspool.training import LossConfig, ScheduleConfig, TrainConfig
from gspool.training.build import build_loss, build_model


def with_loss(name: str, zsr: float = 0.0) -> TrainConfig:
    settings = tiny()
    settings.loss = LossConfig(name=name, zsr=zsr)
    settings.model.pooling_options["warm_start"] = 16
    return settings


def parts_of(settings: TrainConfig):
    model = build_model(settings)
    return model, build_loss(settings.loss, 8, model.out_dim, settings.data.batch_size, 0)


def learned(kind: type[Learner], settings: TrainConfig, device: str, steps: int) -> tuple[list[float], Learner]:
    """Give the loss of every step; the backbone stands still for the first half of them."""
    images = striped(8, 6)
    losses = []
    with own_stream(torch.device(device)):
        model, loss = (copy.deepcopy(part).to(device) for part in parts_of(settings))
        learner = kind(model, loss, settings).train()
        plan = BatchPlan(images, settings.data, 0)
        for step in range(steps):
            if step in (0, steps // 2):
                model.freeze("all" if step == 0 else "none")
                learner.what_learns_changed()
            places = plan.rows_of(step)
            parts = learner.learn(images.pixels[places].to(device), images.labels[places].to(device), step)
            losses.append(float(parts.total.detach()))
    return losses, learner


@pytest.mark.parametrize(("name", "zsr"), [("c2", 0.0), ("c2", 0.2), ("pnca", 0.0), ("pnca", 0.2)])
def test_its_losses_are_those_of_the_library(name: str, zsr: float) -> None:
    settings = with_loss(name, zsr)
    ours, learner = learned(CapturedLearner, settings, "cpu", STEPS_ON_A_CPU)
    theirs, _ = learned(Learner, settings, "cpu", STEPS_ON_A_CPU)
    assert ours == pytest.approx(theirs, rel=1e-4)
    assert learner.graph is None


# On a CPU a learner stays below the number of steps after which it would ask for a graph.
STEPS_ON_A_CPU = 5


@pytest.mark.gpu
@pytest.mark.parametrize(("name", "zsr"), [("c2", 0.2), ("pnca", 0.0), ("pnca", 0.2)])
def test_a_graph_learns_what_steps_one_by_one_learn(name: str, zsr: float, monkeypatch: pytest.MonkeyPatch) -> None:
    # Rounded to ten bits, steps that are the same part ways within thirty of them.
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    settings = with_loss(name, zsr)
    settings.optimiser.lr = 1e-4
    ours, learner = learned(CapturedLearner, settings, "cuda", 40)
    theirs, _ = learned(Learner, settings, "cuda", 40)
    assert learner.graph is not None
    assert ours == pytest.approx(theirs, rel=2e-3)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_a_graph_rounds_and_steps_the_weights_of_a_resnet_together(
    precision: Literal["32-true", "bf16-mixed"], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    settings = with_loss("c2", 0.2)
    settings.model.backbone, settings.model.backbone_options, settings.model.freeze = "keras/resnet50", {}, "batchnorm"
    settings.trainer.precision, settings.optimiser.lr = precision, 1e-6
    losses, learners = [], []
    for kind in (CapturedLearner, Learner):
        images, device = striped(8, 6), torch.device("cuda")
        found = []
        with own_stream(device):
            torch.manual_seed(0)
            model, loss = parts_of(settings)
            fold_frozen_norms(model.backbone)
            fuse_activations(model.backbone)
            fuse_stem(model.backbone)
            model.freeze("batchnorm")
            learner = kind(model.to(device, memory_format=torch.channels_last), loss.to(device), settings).train()
            if kind is Learner:
                monkeypatch.setattr(learner, "_taken_together", lambda device: None)
            plan = BatchPlan(images, settings.data, 0)
            for step in range(20):
                places = plan.rows_of(step)
                parts = learner.learn(images.pixels[places].to(device), images.labels[places].to(device), step)
                found.append(float(parts.total.detach()))
        losses.append(found)
        learners.append(learner)
    assert learners[0].graph is not None
    assert learners[0].rounded is not None
    assert losses[0] == pytest.approx(losses[1], rel=2e-3 if precision == "32-true" else 3e-2)


def test_what_cannot_be_captured_is_known_beforehand() -> None:
    settings = with_loss("c2")
    model, loss = parts_of(settings)
    assert can_be_captured(model, loss, settings)
    other = with_loss("triplet")
    assert not can_be_captured(model, parts_of(other)[1], other)
    settings.schedule = ScheduleConfig(name="cosine")
    assert not can_be_captured(model, loss, settings)
    settings.schedule = ScheduleConfig()
    model.add_module("random", torch.nn.Dropout(0.1))
    assert not can_be_captured(model, loss, settings)
