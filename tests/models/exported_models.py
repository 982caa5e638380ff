"""Small models to export, shared by the tests of torch.export and of ONNX."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from gspool.models import Backbone, Embedder, Pixels


class Patches(Backbone):
    """One convolution: the time of a test goes into the pooling layer."""

    def __init__(self) -> None:
        super().__init__(channels=16, pixels=Pixels(size=32, resize=32))
        self.convolution = nn.Conv2d(3, 16, 4, 4)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        return self.convolution(pixels)


def small(pooling: str = "gsp", backbone: str | Backbone | None = None, **settings: Any) -> Embedder:
    torch.manual_seed(0)
    return Embedder(backbone or Patches(), pooling=pooling, dim=16, **settings).eval()


def pictures(batch: int, height: int, width: int, seed: int = 3) -> torch.Tensor:
    draw = torch.Generator().manual_seed(seed)
    return torch.randint(256, (batch, 3, height, width), dtype=torch.uint8, generator=draw)
