"""Training: from a configuration to an evaluated embedding model.

`train` runs a configuration and its baseline, `fit` trains a single model, `evaluate_run` measures a trained one. There
is one loop, `gspool.training.loop`, on Lightning Fabric, which is imported when training begins.
"""

from gspool.training.config import (
    DataConfig,
    LossConfig,
    ModelConfig,
    OptimiserConfig,
    OutputConfig,
    ScheduleConfig,
    StoredFeatureConfig,
    TrainConfig,
    TrainedHeadConfig,
    TrainerConfig,
)
from gspool.training.embed import embed_images, evaluate_images
from gspool.training.evaluate import evaluate_run
from gspool.training.fit import FitResult, fit
from gspool.training.parsing import parse_config, read_config
from gspool.training.presets import PRESETS
from gspool.training.run import TrainResult, train

__all__ = [
    "PRESETS",
    "DataConfig",
    "FitResult",
    "LossConfig",
    "ModelConfig",
    "OptimiserConfig",
    "OutputConfig",
    "ScheduleConfig",
    "StoredFeatureConfig",
    "TrainConfig",
    "TrainResult",
    "TrainedHeadConfig",
    "TrainerConfig",
    "embed_images",
    "evaluate_images",
    "evaluate_run",
    "fit",
    "parse_config",
    "read_config",
    "train",
]
