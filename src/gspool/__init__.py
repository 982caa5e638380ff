"""Generalized Sum Pooling for PyTorch: exact, fast, and the metric-learning system around it.

The layer, the loss and the mathematics need torch alone and are here at once; what needs more (`Embedder`,
`replace_pooling`, `data`, `evaluation`, `models`, …) is imported when it is first asked for.

Example:
    >>> import torch
    >>> from gspool import GSP
    >>> pool = GSP(dim=512, prototypes=64, mu=0.3, epsilon=5.0)
    >>> pool(torch.randn(2, 512, 7, 7)).shape
    torch.Size([2, 512])
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from gspool import functional, losses, pooling
from gspool.losses.zsr import ZSRLoss
from gspool.pooling.gsp import GSP
from gspool.version import __version__

if TYPE_CHECKING:
    from gspool import data, evaluation, experiments, models, training
    from gspool.models import Embedder, replace_pooling

__all__ = [
    "GSP",
    "Embedder",
    "ZSRLoss",
    "__version__",
    "data",
    "evaluation",
    "experiments",
    "functional",
    "losses",
    "models",
    "pooling",
    "replace_pooling",
    "training",
]

_LATER = {
    "Embedder": "gspool.models",
    "replace_pooling": "gspool.models",
    "data": "gspool.data",
    "evaluation": "gspool.evaluation",
    "experiments": "gspool.experiments",
    "models": "gspool.models",
    "training": "gspool.training",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'gspool' has no attribute {name!r}; it has {', '.join(__all__)}")
    try:
        module = import_module(_LATER[name])
    except ModuleNotFoundError as missing:
        if missing.name is None or missing.name.startswith("gspool"):
            raise
        raise ImportError(
            f"gspool.{name} needs {missing.name}, which is not installed; install what training needs with "
            '`pip install "gspool[train]"`'
        ) from missing
    return module if _LATER[name] == f"gspool.{name}" else getattr(module, name)


def __dir__() -> list[str]:
    return sorted(__all__)
