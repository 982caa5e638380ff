"""Generalized Sum Pooling for PyTorch: exact, fast, and the metric-learning system around it.

Example:
    >>> import torch
    >>> from gspool import GSP
    >>> pool = GSP(dim=512, prototypes=64, mu=0.3, epsilon=5.0)
    >>> pool(torch.randn(2, 512, 7, 7)).shape
    torch.Size([2, 512])
"""

from gspool import functional, pooling
from gspool.losses.zsr import ZSRLoss
from gspool.pooling.gsp import GSP
from gspool.version import __version__

__all__ = ["GSP", "ZSRLoss", "__version__", "functional", "pooling"]
