"""The smallest run on resident data: a network two channels wide, a few steps."""

from __future__ import annotations

from gspool.training import (
    DataConfig,
    LossConfig,
    ModelConfig,
    OptimiserConfig,
    OutputConfig,
    ScheduleConfig,
    TrainConfig,
    TrainerConfig,
)


def tiny(**trainer) -> TrainConfig:
    return TrainConfig(
        data=DataConfig(classes_per_batch=4, images_per_class=2),
        model=ModelConfig(
            backbone_options={"width": 2}, pooling_options={"prototypes": 4, "mu": 0.3, "epsilon": 5.0}, dim=8
        ),
        loss=LossConfig(name="pnca"),
        optimiser=OptimiserConfig(lr=1e-3),
        schedule=ScheduleConfig(),
        trainer=TrainerConfig(
            **{"max_steps": 6, "evaluate_every": 2, "accelerator": "cpu", "progress": False, **trainer}
        ),
        output=OutputConfig(ks=[1, 2], report=False),
    )
