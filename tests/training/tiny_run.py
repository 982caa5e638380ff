"""The smallest run that is still a run: two channels, two images a class, six steps; and what may happen to it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import torch
from PIL import Image

from gspool.training import (
    DataConfig,
    LossConfig,
    ModelConfig,
    OptimiserConfig,
    OutputConfig,
    TrainConfig,
    TrainerConfig,
    metric_learning,
)


def tiny(**trainer) -> TrainConfig:
    settings = {
        "max_steps": 6,
        "evaluate_every": 3,
        "log_every": 1,
        "accelerator": "cpu",
        "progress": False,
        **trainer,
    }
    return TrainConfig(
        data=DataConfig(options={"images_per_class": 2, "size": 16}, classes_per_batch=6, images_per_class=2),
        model=ModelConfig(
            backbone_options={"width": 2}, pooling_options={"prototypes": 4, "mu": 0.3, "epsilon": 5.0}, dim=8
        ),
        loss=LossConfig(name="pnca"),
        optimiser=OptimiserConfig(lr=1e-3),
        trainer=TrainerConfig(**settings),
        output=OutputConfig(report=False),
    )


def interrupt_at(step: int, monkeypatch, model: type | None = None) -> None:
    """Send SIGINT before the loss of a step, of a task with this kind of model where one is given."""
    loss = metric_learning.MetricLearning.loss

    def interrupted(task, batch, at):
        if at == step and (model is None or isinstance(task.model, model)):
            os.kill(os.getpid(), signal.SIGINT)
        return loss(task, batch, at)

    monkeypatch.setattr(metric_learning.MetricLearning, "loss", interrupted)


def script_evaluations(monkeypatch, *values: float) -> None:
    """Let the evaluations of a run find these MAP@R, one after the other."""
    real, coming = metric_learning.evaluate_images, iter(values)

    def scripted(*arguments, **options):
        evaluation = real(*arguments, **options)
        return evaluation._replace(metrics={**evaluation.metrics, "map@r": next(coming)})

    monkeypatch.setattr(metric_learning, "evaluate_images", scripted)


def draw_pictures(root: Path, classes: int, images: int, side: int = 36, ragged: bool = False) -> Path:
    """Draw classes of coloured noise, class00/0.png and so on; with ``ragged`` each a column wider than the last."""
    generator = torch.Generator().manual_seed(0)
    for label in range(classes):
        (root / f"class{label:02d}").mkdir(parents=True)
        colour = torch.randint(40, 216, (3,), generator=generator)
        for number in range(images):
            noise = torch.randint(-40, 40, (side, side + ragged * number, 3), generator=generator)
            Image.fromarray((colour + noise).to(torch.uint8).numpy()).save(root / f"class{label:02d}" / f"{number}.png")
    return root


def some_of(pictures: Path, root: Path, classes: int, images: int) -> Path:
    """Link the first pictures of the first classes into a folder of their own."""
    for label in range(classes):
        folder = root / f"class{label:02d}"
        folder.mkdir(parents=True)
        for number in range(images):
            (folder / f"{number}.png").symlink_to(pictures / folder.name / f"{number}.png")
    return root
