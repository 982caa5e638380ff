"""ResNet20 for 32-pixel images, the backbone of the Cifar Collage study (Sec. 4.4, Supp. 2.2)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

import torch.nn.functional as F
from torch import nn

from gspool.models.backbone import Backbone
from gspool.models.pixels import Pixels
from gspool.models.weights import load_weights

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

Flavour = Literal["postactivation", "preactivation-bottleneck"]
CIFAR100 = Pixels((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762), size=32, resize=32)


class PlainBlock(nn.Module):
    """Two 3x3 convolutions, ReLU after the sum; the shortcut has no weights (He et al. 2016, option A)."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.stride, self.widened = stride, width - channels
        self.conv1 = nn.Conv2d(channels, width, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)

    def forward(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D h w"]:
        """Return the residual block's output."""
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        before = self.widened // 2
        shortcut = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, before, self.widened - before))
        return F.relu(y + shortcut)


class PreactivationBottleneck(nn.Module):
    """Batch norm and ReLU before each of 1x1, 3x3, 1x1 (He et al. 2016, "Identity mappings"); no ReLU after the sum."""

    def __init__(self, channels: int, middle: int, width: int, stride: int, activate: bool, project: bool) -> None:
        super().__init__()
        # The very first block follows a batch norm and ReLU already.
        self.before: nn.Module = nn.Sequential(nn.BatchNorm2d(channels), nn.ReLU()) if activate else nn.Identity()
        self.conv1 = nn.Conv2d(channels, middle, 1, stride, bias=False)
        self.bn2 = nn.BatchNorm2d(middle)
        self.conv2 = nn.Conv2d(middle, middle, 3, padding=1, bias=False)
        self.bn3 = nn.BatchNorm2d(middle)
        self.conv3 = nn.Conv2d(middle, width, 1, bias=False)
        self.shortcut: nn.Module = nn.Conv2d(channels, width, 1, stride, bias=False) if project else nn.Identity()

    def forward(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D h w"]:
        """Return the residual block's output."""
        y = self.conv1(self.before(x))
        y = self.conv2(F.relu(self.bn2(y)))
        y = self.conv3(F.relu(self.bn3(y)))
        return y + self.shortcut(x)


def _plain_stages() -> nn.Sequential:
    """Build 3 stages x 3 blocks of 16, 32, 64 channels."""
    return nn.Sequential(
        *(
            nn.Sequential(*(PlainBlock(before if i == 0 else width, width, stride if i == 0 else 1) for i in range(3)))
            for before, width, stride in ((16, 16, 1), (16, 32, 2), (32, 64, 2))
        )
    )


def _preactivation_stages() -> nn.Sequential:
    """Build 3 stages x 2 blocks of 64, 128, 256 channels, as the authors' reference implementation does."""
    stages = nn.Sequential()
    for before, middle, width, stride in ((16, 16, 64, 1), (64, 64, 128, 2), (128, 128, 256, 2)):
        first = PreactivationBottleneck(before, middle, width, stride, activate=before != 16, project=True)
        second = PreactivationBottleneck(width, width // 2, width, 1, activate=True, project=False)
        stages.append(nn.Sequential(first, second))
    return stages


class ResNet20(Backbone):
    """ResNet20 for CIFAR: an 8x8 map of 32 pixels, 64 channels (256 in the pre-activation flavour).

    The paper describes 3 stages of 3 blocks, which is ``postactivation``; the authors' reference implementation builds
    3 stages of 2 pre-activation bottlenecks, which is ``preactivation-bottleneck``.

    Example:
        >>> import torch
        >>> backbone = ResNet20().eval()
        >>> tuple(backbone(torch.zeros(1, 3, 32, 32)).shape)
        (1, 64, 8, 8)
    """

    def __init__(self, flavour: Flavour = "postactivation", weights: str | Path | None = None) -> None:
        if flavour not in get_args(Flavour):
            raise ValueError(f"flavour of resnet20 must be one of {', '.join(get_args(Flavour))}, got {flavour!r}")
        preactivation = flavour == "preactivation-bottleneck"
        super().__init__(256 if preactivation else 64, CIFAR100)
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.stages = _preactivation_stages() if preactivation else _plain_stages()
        self.after: nn.Module = nn.Sequential(nn.BatchNorm2d(256), nn.ReLU()) if preactivation else nn.Identity()
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
        if weights is not None:
            load_weights(self, weights, ignore=("fc.", "linear.", "classifier."))

    def forward(self, pixels: Float[Tensor, "B 3 H W"]) -> Float[Tensor, "B C h w"]:
        """Compute the feature map before global pooling."""
        return self.after(self.stages(F.relu(self.bn1(self.conv1(pixels)))))
