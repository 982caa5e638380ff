"""Generalized Sum Pooling for PyTorch: exact, fast, and the metric-learning system around it.

Names are imported on first use. The layer, the loss and the mathematics need torch alone; what needs more (`Embedder`,
`data`, `training`, …) raises an error that says what to install. The command line is in this package too, and answers
--help and Ctrl-C before torch has been imported, which takes seconds.

Example:
    >>> import torch
    >>> from gspool import GSP
    >>> pool = GSP(dim=512, prototypes=64, mu=0.3, epsilon=5.0)
    >>> pool(torch.randn(2, 512, 7, 7)).shape
    torch.Size([2, 512])
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gspool.on_demand import import_on_demand, importable

if TYPE_CHECKING:
    from gspool import bench, data, evaluation, experiments, functional, losses, models, pooling, search, training
    from gspool.losses.zsr import ZSRLoss
    from gspool.models import Embedder, replace_pooling
    from gspool.pooling.gsp import GSP
    from gspool.version import __version__

_HOME = {
    "GSP": "pooling.gsp",
    "Embedder": "models.embedder",
    "ZSRLoss": "losses.zsr",
    "__version__": "version",
    "bench": "bench",
    "data": "data",
    "evaluation": "evaluation",
    "experiments": "experiments",
    "functional": "functional",
    "losses": "losses",
    "models": "models",
    "pooling": "pooling",
    "replace_pooling": "models.replace",
    "search": "search",
    "training": "training",
}

# Hidden from type checkers: to them a module with __getattr__ has every name, and a wrong one would go unnoticed.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        return import_on_demand("gspool", _HOME, name, "train")

    def __dir__() -> list[str]:
        return importable("gspool", _HOME)
