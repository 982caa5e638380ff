"""The ResNet50 of Keras applications, the "ResNet50" that the authors' reference implementation loads."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch.nn.functional as F
from torch import nn

from gspool.models.backbone import Backbone
from gspool.models.pixels import Pixels
from gspool.models.weights import load_weights

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

# Keras writes 1.001e-5 where others write 1e-5; the weights were trained with it.
EPSILON = 1.001e-5
STAGES = (("layer1", 64, 3, 1), ("layer2", 128, 4, 2), ("layer3", 256, 6, 2), ("layer4", 512, 3, 2))


class KerasBottleneck(nn.Module):
    """1x1, 3x3, 1x1 with a shortcut; a down-sampling block strides in its *first* 1x1, as He et al. 2016 did."""

    def __init__(self, channels: int, width: int, stride: int, project: bool) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 1, stride, bias=False)
        self.bn1 = nn.BatchNorm2d(width, eps=EPSILON)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width, eps=EPSILON)
        self.conv3 = nn.Conv2d(width, 4 * width, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * width, eps=EPSILON)
        self.downsample: nn.Module = nn.Identity()
        if project:
            convolution = nn.Conv2d(channels, 4 * width, 1, stride, bias=False)
            self.downsample = nn.Sequential(convolution, nn.BatchNorm2d(4 * width, eps=EPSILON))

    def forward(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D h w"]:
        """Return the residual block's output."""
        y = F.relu(self.bn1(self.conv1(x)))
        y = F.relu(self.bn2(self.conv2(y)))
        return F.relu(self.bn3(self.conv3(y)) + self.downsample(x))


class KerasResNet50(Backbone):
    """ResNet50 as Keras builds it: 2048 channels, an 8x8 map of 227 pixels; names as in torchvision.

    It is not the ResNet50 of torchvision or timm: the stride of a down-sampling block sits in its first 1x1, batch norm
    adds 1.001e-5, and pixels are BGR from 0 to 255 minus a mean. Weights of one load into the other without an error
    and give wrong features.

    Args:
        weights: a file with the ImageNet weights of Keras under torchvision's names.

    Example:
        >>> import torch
        >>> backbone = KerasResNet50().eval()
        >>> with torch.no_grad():
        ...     tuple(backbone(torch.zeros(1, 3, 65, 65)).shape)
        (1, 2048, 3, 3)
    """

    def __init__(self, weights: str | Path | None = None) -> None:
        mean = (103.939, 116.779, 123.68)
        super().__init__(2048, Pixels(mean, (1.0, 1.0, 1.0), "BGR", "0-255", size=227, resize=256))
        self.conv1 = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64, eps=EPSILON)
        channels = 64
        for name, width, blocks, stride in STAGES:
            stage = nn.Sequential()
            for index in range(blocks):
                stage.append(KerasBottleneck(channels, width, stride if index == 0 else 1, project=index == 0))
                channels = 4 * width
            self.add_module(name, stage)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        if weights is not None:
            load_weights(self, weights, ignore=("fc.",))

    def forward(self, pixels: Float[Tensor, "B 3 H W"]) -> Float[Tensor, "B 2048 h w"]:
        """Compute the feature map before global pooling."""
        x = F.relu(self.bn1(self.conv1(pixels)))
        # Keras pads with zeros here. After a ReLU this equals PyTorch's padding, which never is the maximum.
        x = F.max_pool2d(x, 3, stride=2, padding=1)
        for name, *_ in STAGES:
            x = self.get_submodule(name)(x)
        return x
