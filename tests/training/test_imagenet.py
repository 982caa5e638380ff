"""The ImageNet recipe on a small tree: two processes, from folders and shards, one of them killed, the same numbers."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from data.test_imagenet import write_folders, write_shards
from gspool import Embedder, data
from gspool.training import TrainConfig, fit
from gspool.training.checkpoint import BEST, LAST, read_checkpoint
from gspool.training.config import OptimiserConfig
from gspool.training.evaluate import evaluate_run
from gspool.training.metric_learning import MetricLearning
from gspool.training.presets import preset
from training.interrupted_runs import numbers_of, said, start, wait
from training.test_classify import stripes
from training.tiny_run import tiny

pytestmark = [
    pytest.mark.usefixtures("ready_to_fork"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning"),
]


def recipe(root: Path, folder: Path) -> TrainConfig:
    """Return the recipe of ResNetV2-50 on two processes, in everything but its size."""
    config = preset("paper/imagenet-resnetv2-50")
    config.data.root, config.output.folder = str(root), str(folder)
    config.data.options = {"held_out": 1, "allow_partial": True}
    config.data.classes_per_batch, config.data.workers = 4, 0
    config.model.backbone = "small_cnn"
    config.model.backbone_options = {"width": 2, "pixels": {"size": 16, "resize": 18}}
    config.model.pooling_options["prototypes"] = 4
    config.optimiser.lr = 0.01
    trainer = config.trainer
    trainer.max_steps, trainer.evaluate_every, trainer.checkpoint_every, trainer.log_every = 16, 8, 3, 1
    trainer.accelerator, trainer.devices, trainer.progress = "cpu", 2, False
    config.output.report = False
    return config


def without_names(numbers: dict[str, Any]) -> dict[str, Any]:
    """Leave out the names of pictures, which shards do not have."""
    figures = ("metrics", "best_step", "validation", "weights_entropy")
    return {**numbers, "result": {name: numbers["result"][name] for name in figures}}


def test_a_killed_rank_changes_no_number_and_shards_give_those_of_folders(tmp_path, monkeypatch):
    folders, shards = write_folders(tmp_path / "folders"), write_shards(tmp_path / "shards")
    assert wait(start(recipe(folders, tmp_path / "whole"), 2)) == [0, 0], said(tmp_path / "whole")
    whole = without_names(numbers_of(tmp_path / "whole"))
    assert set(whole["result"]["metrics"]) >= {"accuracy", "p@1", "map@r"}
    run, loss = tmp_path / "run", MetricLearning.loss

    def killed(task, batch, at):
        if at == 6 and task.fabric.global_rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return loss(task, batch, at)

    monkeypatch.setattr(MetricLearning, "loss", killed)
    assert -signal.SIGKILL in wait(start(recipe(shards, run), 2), leave_together=True)
    monkeypatch.setattr(MetricLearning, "loss", loss)
    assert not (run / "result.json").exists()
    assert read_checkpoint(run / LAST)["step"] >= 3
    assert wait(start(recipe(shards, run), 2)) == [0, 0], said(run)
    assert without_names(numbers_of(run)) == whole
    # What was saved is the average of the weights, and classifies as the run says.
    model = Embedder.from_pretrained(tmp_path / "whole" / "model")
    best = read_checkpoint(tmp_path / "whole" / BEST)["model"]
    assert all(torch.equal(value, best[name]) for name, value in model.state_dict().items())
    classifier = load_file(tmp_path / "whole" / "classifier.safetensors")
    test = data.create("imagenet", folders, "test", allow_partial=True)
    pixels = torch.stack([model.pixels.transform()(image) for image, _ in test])
    logits = model.embed(pixels).pooled @ classifier["weight"].T + classifier["bias"]
    accuracy = (logits.argmax(1) == test.labels).double().mean()
    assert float(accuracy) == whole["result"]["metrics"]["accuracy"]
    assert evaluate_run(tmp_path / "whole").figures() == whole["result"]["metrics"]


@pytest.mark.parametrize("optimiser", ["sgd", "rmsprop"])
def test_a_separable_problem_is_learned_with_every_image_once_an_epoch(tmp_path, optimiser):
    config, images = tiny(monitor="accuracy", max_steps=40, evaluate_every=10, ema=0.9), stripes()
    config.loss.name, config.model.dim, config.data.sampler = "cross_entropy", None, "shuffled"
    config.data.classes_per_batch, config.data.images_per_class = 24, 1
    config.optimiser = OptimiserConfig(optimiser, lr=0.03, betas=(0.9, 0.9), eps=1e-3, proxies=1.0)
    result = fit(config, tmp_path / "run", sets={"train": images, "validation": images, "test": images})
    assert result.metrics["accuracy"] == result.validation > 0.95


def test_a_classifier_is_measured_on_the_classes_that_it_learns(tmp_path):
    config = tiny(monitor="accuracy")
    config.loss.name, config.data.sampler = "cross_entropy", "shuffled"
    with pytest.raises(ValueError, match="cross_entropy predicts the classes of train, and test has others"):
        fit(config, tmp_path / "run")
    config.trainer.monitor = "map@r"
    with pytest.raises(ValueError, match=r"trainer.monitor must be one of accuracy, got 'map@r'"):
        fit(config, tmp_path / "run")
