"""The output of timm's `forward_features` as a feature map."""

from __future__ import annotations

from math import isqrt, prod
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import nn

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor


class FeatureForm(NamedTuple):
    """The form of a network's features: layout, width, and leading tokens that have no position.

    ``stride`` is the distance of two tokens in pixels, down and across; None if the tokens form no grid.
    """

    layout: str  # "NCHW", "NHWC" or "tokens"
    channels: int
    prefix: int = 0
    stride: tuple[float, float] | None = None

    def as_map(self, features: Tensor, size: tuple[int, int]) -> Float[Tensor, "B C h w"]:
        """Return features of an image of ``size`` as a map [B, C, h, w], or as tokens [B, N, C] if there is no grid."""
        if self.layout == "NCHW":
            return features
        if self.layout == "NHWC":
            return features.permute(0, 3, 1, 2)
        tokens = features[:, self.prefix :]
        grid = self._grid(size, tokens.shape[1])
        return tokens if grid is None else tokens.transpose(1, 2).unflatten(2, grid)

    def _grid(self, size: tuple[int, int], tokens: int) -> tuple[int, int] | None:
        if self.stride is None:
            return None
        # Networks either pad or cut an image that is no multiple of the stride.
        down, across = (_steps(n, step) for n, step in zip(size, self.stride, strict=True))
        return next(((h, w) for h in down for w in across if h * w == tokens), None)


def _steps(length: int, stride: float) -> tuple[int, int]:
    """Count strides, rounded down and up; whole numbers keep the size of an exported graph dynamic."""
    if float(stride).is_integer():
        return length // int(stride), -(-length // int(stride))
    return int(length // stride), int(-(-length // stride))


def form_of(network: nn.Module, shape: tuple[int, ...], size: tuple[int, int]) -> FeatureForm | None:
    """Find the form of features of ``shape`` for an image of ``size``; None if there is no map in them."""
    if len(shape) == 4:
        wide = getattr(network, "num_features", None)
        last = getattr(network, "output_fmt", None) == "NHWC" or (shape[3] == wide != shape[1])
        return FeatureForm("NHWC", shape[3]) if last else FeatureForm("NCHW", shape[1])
    if len(shape) != 3:
        return None
    prefix = getattr(network, "num_prefix_tokens", None)
    if prefix is None:
        # Older architectures do not state their number of class tokens: it is what exceeds a square.
        prefix = shape[1] - isqrt(shape[1]) ** 2 if size[0] == size[1] else 0
    tokens = shape[1] - prefix
    if tokens < 2:
        return None
    rows = round((tokens * size[0] / size[1]) ** 0.5)
    grid = (rows, tokens // rows)
    stride = (size[0] / grid[0], size[1] / grid[1]) if prod(grid) == tokens else None
    return FeatureForm("tokens", shape[2], prefix, stride)


def dry_run(probe: nn.Module, size: tuple[int, int]) -> tuple[FeatureForm | None, set[str]]:
    """Run a network on the meta device, where shapes are computed and numbers are not.

    Returns its form, and the names of its children that have parameters and do not affect the features: the rest of a
    classifier.

    Raises:
        RuntimeError: if the network needs numbers to go on.
    """
    probe.eval()
    features = probe.forward_features(torch.zeros(1, 3, *size, device="meta"))  # type: ignore[operator]
    if not isinstance(features, torch.Tensor):
        return None, set()
    features.sum().backward()
    idle = {
        name
        for name, part in probe.named_children()
        if (parameters := list(part.parameters())) and all(parameter.grad is None for parameter in parameters)
    }
    return form_of(probe, tuple(features.shape), size), idle
