"""One training of a grid on the training engine: where it runs, how long, and where it keeps its checkpoints."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping
from multiprocessing import parent_process
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from gspool.training import TrainerConfig


def on_engine(trainer: TrainerConfig, device: str, seconds: float = 0.0, mixed: bool = False) -> None:
    """Set device, time limit and progress bar of a training; ``mixed`` uses bf16 on a GPU."""
    on_gpu = torch.device(device).type == "cuda"
    trainer.accelerator, trainer.max_seconds = "gpu" if on_gpu else "cpu", seconds
    trainer.precision = "bf16-mixed" if mixed and on_gpu else "32-true"
    # Files and worker processes get no progress bar.
    trainer.progress = sys.stderr.isatty() and parent_process() is None


def training_folder(folder: Path, asked: Mapping[str, Any]) -> Path:
    """Make the folder of a training's checkpoints, by a hash of what is asked for; remove it when the training ends."""
    key = hashlib.sha256(json.dumps(dict(asked), sort_keys=True).encode()).hexdigest()[:16]
    place = folder / "trainings" / key
    place.mkdir(parents=True, exist_ok=True)
    return place
