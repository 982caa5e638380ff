"""Losses: the paper's six as settings of pytorch-metric-learning, XBM, LIBC, cross-entropy, zero-shot regularisation.

`create("c2", num_classes=100, dim=128, preset="cub")` makes a loss by name, `create_miner` a miner, `list()` names the
paper's losses, `PRESETS` is the table of its values, `MetricLoss` mixes a loss with `ZSRLoss`. pytorch-metric-learning
is imported when a loss of its own is asked for: `ZSRLoss`, `LIBCLoss` and `CrossEntropyLoss` need torch alone.
"""

from gspool.losses.create import create, create_miner, list
from gspool.losses.cross_entropy import CrossEntropyLoss
from gspool.losses.libc import LIBCLoss
from gspool.losses.metric_loss import LossParts, MetricLoss
from gspool.losses.presets import PRESETS
from gspool.losses.xbm import CrossBatchMemoryLoss
from gspool.losses.zsr import ZSRLoss

__all__ = [
    "PRESETS",
    "CrossBatchMemoryLoss",
    "CrossEntropyLoss",
    "LIBCLoss",
    "LossParts",
    "MetricLoss",
    "ZSRLoss",
    "create",
    "create_miner",
    "list",
]
