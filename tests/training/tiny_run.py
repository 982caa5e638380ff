"""The smallest run that is still a run: a network two channels wide, two images a class, six steps."""

from __future__ import annotations

from gspool.training import (
    DataConfig,
    LossConfig,
    ModelConfig,
    OptimiserConfig,
    OutputConfig,
    TrainConfig,
    TrainerConfig,
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
