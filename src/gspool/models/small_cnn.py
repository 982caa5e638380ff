"""A small network for small images, trained from scratch on a CPU in minutes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn

from gspool.models.backbone import Backbone
from gspool.models.pixels import Pixels
from gspool.models.weights import load_weights

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

CENTRED = Pixels((0.5, 0.5, 0.5), (0.5, 0.5, 0.5), size=64, resize=64)


class SmallCNN(Backbone):
    """Six 3x3 convolutions with batch norm and ReLU; max pooling halves every other map: 64 pixels become 8 x 8.

    Args:
        width: channels of the first convolution; the last has eight times as many.
        weights: a file of weights; random otherwise.

    Example:
        >>> backbone = SmallCNN().eval()
        >>> tuple(backbone(torch.zeros(1, 3, 64, 64)).shape)
        (1, 128, 8, 8)
    """

    def __init__(self, width: int = 16, weights: str | Path | None = None) -> None:
        if isinstance(width, bool) or not isinstance(width, int) or width < 1:
            raise ValueError(f"width is the number of channels of the first layer, a positive integer, got {width!r}")
        super().__init__(8 * width, CENTRED)
        layers: list[nn.Module] = []
        channels = 3
        for multiple, halves in ((1, True), (2, False), (4, True), (4, False), (8, True), (8, False)):
            convolution = nn.Conv2d(channels, multiple * width, 3, padding=1, bias=False)
            nn.init.kaiming_normal_(convolution.weight, nonlinearity="relu")
            channels = multiple * width
            # Max pooling comes first, so that what follows has a quarter of the work.
            layers += [convolution, *([nn.MaxPool2d(2)] if halves else []), nn.BatchNorm2d(channels)]
            layers.append(nn.ReLU(inplace=True))
        self.layers = nn.Sequential(*layers)
        if weights is not None:
            load_weights(self, weights)

    def forward(self, pixels: Float[Tensor, "B 3 H W"]) -> Float[Tensor, "B C h w"]:
        """Compute the feature map before global pooling."""
        # Convolutions of few channels are a quarter faster on a CPU with the channels last; the result is the same.
        return self.layers(pixels.contiguous(memory_format=torch.channels_last))
