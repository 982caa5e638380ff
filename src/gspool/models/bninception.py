"""BN-Inception, the backbone of the paper's main tables (Sec. 4.4), under the names of its Caffe-converted weights."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from gspool.models.backbone import Backbone
from gspool.models.pixels import Pixels
from gspool.models.weights import load_weights

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor


class Block(NamedTuple):
    """Channels of one inception block; a block without a 1x1 branch halves the map."""

    name: str
    channels: int
    plain: int  # the 1x1 branch; 0 leaves it out
    reduce: int  # 1x1, then 3x3
    single: int
    double_reduce: int  # 1x1, then 3x3 twice
    double: int
    pool: str
    projection: int  # 1x1 after the pooling branch; 0 passes the pooled features on

    @property
    def stride(self) -> int:
        """Two in the blocks that halve the map."""
        return 1 if self.plain else 2

    @property
    def out(self) -> int:
        """Channels of all branches together."""
        return self.plain + self.single + self.double + (self.projection or self.channels)


# Ioffe & Szegedy 2015, in the variant whose ImageNet weights metric learning uses.
BLOCKS = (
    Block("inception_3a", 192, 64, 64, 64, 64, 96, "average", 32),
    Block("inception_3b", 256, 64, 64, 96, 64, 96, "average", 64),
    Block("inception_3c", 320, 0, 128, 160, 64, 96, "max", 0),
    Block("inception_4a", 576, 224, 64, 96, 96, 128, "average", 128),
    Block("inception_4b", 576, 192, 96, 128, 96, 128, "average", 128),
    Block("inception_4c", 576, 160, 128, 160, 128, 160, "average", 128),
    Block("inception_4d", 608, 96, 128, 192, 160, 192, "average", 128),
    Block("inception_4e", 608, 0, 128, 192, 192, 256, "max", 0),
    Block("inception_5a", 1056, 352, 192, 320, 160, 224, "average", 128),
    Block("inception_5b", 1024, 352, 192, 320, 192, 224, "max", 128),
)


class BNInception(Backbone):
    """BN-Inception up to its last block: 1024 channels, an 8x8 map of 227 pixels.

    At 224 pixels every map is even, and this is the Caffe network. An odd map is halved to ``(n + 1) / 2`` in all
    branches, as in TensorFlow, in which the paper's models were trained: an 8x8 map at 227 pixels. Caffe's
    own rounding would give 7x7 there, and fail where the branches of a halving block disagree.

    Args:
        weights: a file with the Caffe-converted ImageNet weights; its classifier is ignored.

    Example:
        >>> backbone = BNInception().eval()
        >>> with torch.no_grad():
        ...     tuple(backbone(torch.zeros(1, 3, 227, 227)).shape)
        (1, 1024, 8, 8)
    """

    def __init__(self, weights: str | Path | None = None) -> None:
        mean = (104.0, 117.0, 128.0)
        super().__init__(1024, Pixels(mean, (1.0, 1.0, 1.0), "BGR", "0-255", size=227, resize=256))
        # One flat namespace, because the names of the published weights are flat.
        self._add("conv1_7x7_s2", 3, 64, kernel=7, stride=2)
        self._add("conv2_3x3_reduce", 64, 64, kernel=1)
        self._add("conv2_3x3", 64, 192, kernel=3)
        for block in BLOCKS:
            if block.plain:
                self._add(f"{block.name}_1x1", block.channels, block.plain, kernel=1)
            self._add(f"{block.name}_3x3_reduce", block.channels, block.reduce, kernel=1)
            self._add(f"{block.name}_3x3", block.reduce, block.single, kernel=3, stride=block.stride)
            self._add(f"{block.name}_double_3x3_reduce", block.channels, block.double_reduce, kernel=1)
            self._add(f"{block.name}_double_3x3_1", block.double_reduce, block.double, kernel=3)
            self._add(f"{block.name}_double_3x3_2", block.double, block.double, kernel=3, stride=block.stride)
            if block.projection:
                self._add(f"{block.name}_pool_proj", block.channels, block.projection, kernel=1)
        if weights is not None:
            load_weights(self, weights, ignore=("last_linear.", "fc."), adapt=_flat_vectors)

    def _add(self, name: str, channels: int, out: int, kernel: int, stride: int = 1) -> None:
        convolution = nn.Conv2d(channels, out, kernel, stride, padding=kernel // 2)
        nn.init.kaiming_normal_(convolution.weight, nonlinearity="relu")
        self.add_module(name, convolution)
        self.add_module(f"{name}_bn", nn.BatchNorm2d(out))

    def _unit(self, name: str, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D h w"]:
        """Convolve, normalise, rectify."""
        modules = self._modules
        return F.relu(modules[f"{name}_bn"](modules[name](x)))  # type: ignore[misc]

    def _inception(self, block: Block, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D h w"]:
        branches = [self._unit(f"{block.name}_1x1", x)] if block.plain else []
        branches.append(self._unit(f"{block.name}_3x3", self._unit(f"{block.name}_3x3_reduce", x)))
        double = self._unit(f"{block.name}_double_3x3_1", self._unit(f"{block.name}_double_3x3_reduce", x))
        branches.append(self._unit(f"{block.name}_double_3x3_2", double))
        if block.pool == "average":
            pooled = F.avg_pool2d(x, 3, stride=1, padding=1)
        elif block.stride == 1:
            pooled = F.max_pool2d(x, 3, stride=1, padding=1)
        else:
            pooled = _halve(x)
        branches.append(self._unit(f"{block.name}_pool_proj", pooled) if block.projection else pooled)
        return torch.cat(branches, dim=1)

    def forward(self, pixels: Float[Tensor, "B 3 H W"]) -> Float[Tensor, "B 1024 h w"]:
        """Compute the feature map before global pooling."""
        x = _halve(self._unit("conv1_7x7_s2", pixels))
        x = _halve(self._unit("conv2_3x3", self._unit("conv2_3x3_reduce", x)))
        for block in BLOCKS:
            x = self._inception(block, x)
        return x


def _halve(x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B C h w"]:
    """Take 3x3 maxima at stride 2: in Caffe's windows on an even map, around every other pixel on an odd one."""
    return F.max_pool2d(x, 3, stride=2, padding=(x.shape[2] % 2, x.shape[3] % 2), ceil_mode=True)


def _flat_vectors(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Undo the shape [1, C] that one published conversion has for the vectors of batch norm."""
    return {name: value[0] if value.ndim == 2 and value.shape[0] == 1 else value for name, value in weights.items()}
