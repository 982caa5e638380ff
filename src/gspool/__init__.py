"""Generalized Sum Pooling for PyTorch: exact, fast, and the metric-learning system around it.

Names are imported when they are first asked for: the layer, the loss and the mathematics need torch alone, what needs
more (`Embedder`, `data`, `training`, …) says what to install where that is missing. The command line lies in this
package too, and answers --help and Ctrl-C before torch has been imported, which takes seconds.

Example:
    >>> import torch
    >>> from gspool import GSP
    >>> pool = GSP(dim=512, prototypes=64, mu=0.3, epsilon=5.0)
    >>> pool(torch.randn(2, 512, 7, 7)).shape
    torch.Size([2, 512])
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gspool.on_demand import at_hand, import_on_demand
from gspool.version import __version__

if TYPE_CHECKING:
    from gspool import bench, data, evaluation, experiments, functional, losses, models, pooling, search, training
    from gspool.losses.zsr import ZSRLoss
    from gspool.models import Embedder, replace_pooling
    from gspool.pooling.gsp import GSP

__all__ = [
    "GSP",
    "Embedder",
    "ZSRLoss",
    "__version__",
    "bench",
    "data",
    "evaluation",
    "experiments",
    "functional",
    "losses",
    "models",
    "pooling",
    "replace_pooling",
    "search",
    "training",
]

_HOME = {
    "GSP": "pooling.gsp",
    "Embedder": "models",
    "ZSRLoss": "losses.zsr",
    "replace_pooling": "models",
    "bench": "bench",
    "data": "data",
    "evaluation": "evaluation",
    "experiments": "experiments",
    "functional": "functional",
    "losses": "losses",
    "models": "models",
    "pooling": "pooling",
    "search": "search",
    "training": "training",
}
_NEEDS = {
    "Embedder": ("huggingface_hub", "safetensors"),
    "data": ("PIL", "numpy"),
    "training": ("PIL", "huggingface_hub", "jsonargparse", "numpy", "safetensors", "yaml"),
}

# Hidden from type checkers: to them a module with __getattr__ has every name there is, and no slip would be noticed.
if not TYPE_CHECKING:
    __all__ = at_hand(__all__, _NEEDS)

    def __getattr__(name: str) -> Any:
        return import_on_demand("gspool", _HOME, name, "train")

    def __dir__() -> list[str]:
        return sorted(__all__)
