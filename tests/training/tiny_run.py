"""The smallest run that is still a run: two channels, two images a class, six steps; and what may happen to it."""

from __future__ import annotations

import os
import signal

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
