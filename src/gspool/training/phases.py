"""A run in two phases: the head alone on a frozen backbone, then the whole network from there."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING

from gspool.training.checkpoint import BEST, read_checkpoint
from gspool.training.config import TrainConfig
from gspool.training.parsing import read_config
from gspool.training.run_folder import CONFIG, read_result

if TYPE_CHECKING:
    from gspool.losses import MetricLoss


def head_first(config: TrainConfig) -> TrainConfig:
    """Return the first phase of a run: the head alone, on the tokens of the frozen backbone."""
    first = deepcopy(config)
    first.model.freeze, first.baseline, first.head.steps = "all", None, 0
    first.optimiser.lr, first.optimiser.weight_decay, first.optimiser.multipliers = config.head.lr, 0.0, {}
    first.schedule.warmup_epochs = 0.0
    first.trainer.max_steps = config.head.steps
    return first


def earlier_figures(config: TrainConfig) -> dict[str, dict[str, float]]:
    """Return the test metrics of the run that this one starts from; {} if it starts anew or has other data."""
    run = Path(config.start_from or "")
    if config.start_from is None or not (run / CONFIG).is_file():
        return {}
    earlier, result = read_config(run / CONFIG), read_result(run)
    if result is None or (earlier.data.name, earlier.data.root) != (config.data.name, config.data.root):
        return {}
    name = "head alone" if earlier.model.freeze == "all" else "before fine-tuning"
    return {**result.get("before", {}), name: result["metrics"]}


def load_proxies(loss: MetricLoss, run: Path) -> None:
    """Go on with the proxies of an earlier phase, where they are those of the same loss and classes."""
    state = read_checkpoint(run / BEST).get("loss") if (run / BEST).is_file() else None
    shapes = {name: value.shape for name, value in loss.state_dict().items()}
    if state is not None and shapes == {name: value.shape for name, value in state.items()}:
        loss.load_state_dict(state)
