"""A pooling layer in the place of another: it takes the layout of the network and gives the shape that is read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from gspool.functional.results import Pooled
from gspool.pooling.layer import PoolingLayer, as_tokens

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from torch import Tensor

    from gspool.models.replace.recognition import Kind


# The name of the layer in a module that it was put behind, and so in the state dict: "features.global_pooling.layer".
ADDED_NAME = "global_pooling"


class SwappedPooling(nn.Module):
    """A pooling layer that stands where a network had its own global pooling; ``layer`` is the layer itself.

    Args:
        layer: the pooling layer.
        channels_last: whether the features come as [B, H, W, C] or [B, N, D] rather than [B, C, H, W] or [B, D, N].
        units: axes of length one before and after the channels of the result; (0, 2) gives [B, C, 1, 1].
        prefix: leading tokens (class token, registers) that are not pooled.
        keep_prefix: put those tokens in front of the result again, for a network that skips them itself.
        rectify: apply a ReLU first, for a network that has its own only behind this place.
    """

    def __init__(
        self,
        layer: PoolingLayer,
        *,
        channels_last: bool = False,
        units: tuple[int, int] = (0, 0),
        prefix: int = 0,
        keep_prefix: bool = False,
        rectify: bool = False,
    ) -> None:
        super().__init__()
        self.layer = layer
        self.channels_last = channels_last
        self.units = units
        self.prefix = prefix
        self.keep_prefix = keep_prefix
        self.rectify = rectify

    def forward(self, x: Float[Tensor, "B ..."]) -> Float[Tensor, "B ..."]:
        """Pool the features and give the result the shape that the network reads."""
        features = x[:, self.prefix :] if self.prefix else x
        if self.rectify:
            features = torch.relu(features)
        if features.ndim == 3:
            features = features if self.channels_last else features.transpose(1, 2)
        elif self.channels_last:
            features = features.movedim(-1, 1)
        if features.ndim == 5:  # video: time and height are both positions
            features = features.flatten(2, 3)
        before, after = self.units
        pooled = self.layer(features)
        pooled = pooled.reshape(pooled.shape[0], *(1,) * before, pooled.shape[1], *(1,) * after)
        if self.keep_prefix:
            return torch.cat((x[:, : self.prefix], pooled), dim=1)
        # Some networks go on in place (ReLU, dropout), which must not touch what the layer keeps for its gradient.
        return pooled.clone()

    # timm asks its pooling selector these three when `reset_classifier` changes the number of classes.
    @property
    def pool_type(self) -> str:
        """The name of the pooling, as timm asks for it."""
        return type(self.layer).__name__.lower()

    def feat_mult(self) -> int:
        """How many times as many channels go out as come in, as timm asks for it."""
        return self.layer.out_dim // self.layer.dim

    def is_identity(self) -> bool:
        """Whether nothing is pooled, as timm asks for it."""
        return False

    def extra_repr(self) -> str:
        """Name only what differs from a plain [B, C, H, W] -> [B, C]."""
        told = {"channels_last": False, "units": (0, 0), "prefix": 0, "keep_prefix": False, "rectify": False}
        return ", ".join(
            f"{name}={getattr(self, name)}" for name, usual in told.items() if getattr(self, name) != usual
        )


class SamePooling(PoolingLayer):
    """The pooling that a network had, at the new place: if the outputs stay the same, the place is the right one."""

    def __init__(self, dim: int, kind: Kind) -> None:
        super().__init__(dim, 2 * dim if kind == "average beside maximum" else dim)
        self.kind = kind
        self.saw: Float[Tensor, "B N C"] | None = None

    def pool(self, x: Float[Tensor, "B C H W"], mask: Bool[Tensor, "B H W"] | None = None) -> Pooled:
        """Average, maximum, their mean, or both in a row."""
        self.saw = tokens = as_tokens(x, self.dim)
        average, maximum = tokens.mean(1), tokens.amax(1)
        if self.kind == "maximum":
            return Pooled(maximum)
        if self.kind == "average and maximum":
            return Pooled(0.5 * (average + maximum))
        if self.kind == "average beside maximum":
            return Pooled(torch.cat((average, maximum), dim=1))
        return Pooled(average)


def pool_output(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor:
    """Pool what a module gives: the forward hook for networks that pool by a function, not by a module.

    It leaves one position, and the network's own average over one position changes nothing. It asks the module for its
    layer, so that a copy of the module (deepcopy, pickle, a replica on another device) uses its own.
    """
    pooled: Tensor = module.get_submodule(ADDED_NAME)(output)
    return pooled
