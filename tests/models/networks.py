"""Small networks for the tests of the one-line swap."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from gspool.pooling.gsp import GSP

TINY_VIT = {"embed_dim": 32, "depth": 1, "num_heads": 2, "img_size": 64, "num_classes": 5}


class Classifier(nn.Module):
    """A network that pools by a function, `pooled`, which each test writes as it likes."""

    def __init__(self, dim: int = 6) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, dim, 3, stride=2)
        self.gate = nn.Linear(dim, dim)
        self.conv = nn.Conv2d(dim, dim, 1)
        self.head = nn.Linear(dim, 4)

    def pooled(self, x: Tensor) -> Tensor:
        return self.conv(x).mean((2, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.pooled(torch.tanh(self.stem(x))))


class Nothing(GSP):
    """A layer that shows whether it stands in the way of the data."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return 0 * super().forward(x, mask)
