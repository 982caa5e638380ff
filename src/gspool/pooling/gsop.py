"""GSoP: attention from second-order statistics of channels and of places, then the average."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import nn

from gspool.functional.checks import computing_dtype, full_precision
from gspool.functional.results import Pooled
from gspool.pooling.layer import PoolingLayer, as_tokens, check_plane

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from torch import Tensor


class GSoP(PoolingLayer):
    """Average pooling of a map gated by what its channels, and its places, have in common (Gao et al., CVPR 2019).

    ``y = (1/n) sum_j max(g * f_j, s_j relu(f_j))``, with gates ``g`` for channels and ``s`` for places.

    For either gate the map is reduced to ``attention_dim`` channels, ``relu(batch_norm(W relu(f)))``. The channel gate
    reads the covariance of these channels over the places. The spatial gate averages the reduced map on a raster of
    ``grid`` x ``grid`` cells, reads the covariance of the cells over the channels, and is spread back to H x W. A
    covariance is read by batch norm, a row-wise convolution (four filters for each row, which see that row only), a
    linear map and a sigmoid.

    In the paper's comparison features are embedded first and ``attention_dim`` is 128 (Supp. 1.3, the authors'
    reference implementation, whose spatial gate is made for one map size; on maps of 8 x 8 the raster is the map).
    The maximum leaves nothing of a negative feature, so the vector is never negative.

    Args:
        dim: number of feature channels.
        attention_dim: channels of the reduced map.
        grid: side of the raster of the spatial branch.

    Raises:
        ValueError: if an option is out of range, or, when called, if the features have no plane, do not fit ``dim``, or
            come with a mask.

    Example:
        >>> GSoP(64)(torch.randn(2, 64, 7, 5)).shape
        torch.Size([2, 64])
    """

    embedding = "before"

    def __init__(self, dim: int, attention_dim: int = 128, grid: int = 8) -> None:
        super().__init__(dim)
        for name, value in (("attention_dim", attention_dim), ("grid", grid)):
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} must be a positive integer, got {value!r}")
        self.grid = grid
        self.reduce_channels = reduction(dim, attention_dim)
        self.channel_gate = SecondOrderGate(attention_dim, dim, activation=nn.Identity())
        self.reduce_places = reduction(dim, attention_dim)
        self.spatial_gate = SecondOrderGate(grid * grid, grid * grid, activation=nn.ReLU())

    def pool(self, x: Float[Tensor, "B C H W"], mask: Bool[Tensor, "B H W"] | None = None) -> Pooled:
        """Gate by both covariances, fuse by the maximum, take the average."""
        as_tokens(x, self.dim)
        check_plane(x, "GSoP needs the plane for its spatial branch")
        if mask is not None:
            raise ValueError(
                "GSoP takes no mask: its raster covers the whole plane. Crop the map to its real part instead"
            )
        precise = computing_dtype(x)
        raw = x.to(self.channel_gate.mix.weight.dtype)

        reduced = self.reduce_channels(raw).flatten(2)
        channels = self.channel_gate(covariance(reduced.transpose(1, 2)))[:, :, None, None]

        height, width = x.shape[2:]
        down = averaging(height, self.grid, like=x), averaging(width, self.grid, like=x)
        reduced = resample(self.reduce_places(raw), *down).flatten(2)
        places = self.spatial_gate(covariance(reduced)).unflatten(1, (1, self.grid, self.grid))
        places = resample(places, averaging(self.grid, height, like=x), averaging(self.grid, width, like=x))

        features = x.to(precise)
        fused = torch.maximum(features * channels.to(precise), F.relu(features) * places.to(precise))
        return Pooled(fused.mean((2, 3)).to(x.dtype))

    def extra_repr(self) -> str:
        """Name the sizes."""
        return f"{super().extra_repr()}, grid={self.grid}"


class SecondOrderGate(nn.Module):
    """From a covariance to gates in (0, 1): batch norm, a row-wise convolution, a full linear map."""

    def __init__(self, rows: int, gates: int, activation: nn.Module) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(rows)
        self.row_wise = nn.Conv1d(rows, 4 * rows, kernel_size=rows, groups=rows)
        self.activation = activation
        self.mix = nn.Linear(4 * rows, gates)
        start_from_glorot(self.row_wise)
        start_from_glorot(self.mix)

    def forward(self, matrix: Float[Tensor, "B R R"]) -> Float[Tensor, "B G"]:
        """Read every row by its own filters, mix what they saw."""
        rows = self.row_wise(self.norm(matrix.to(self.mix.weight.dtype))).flatten(1)
        return torch.sigmoid(self.mix(self.activation(rows)))


def reduction(dim: int, attention_dim: int) -> nn.Sequential:
    """The 1x1 convolution in front of a covariance."""
    convolution = nn.Conv2d(dim, attention_dim, 1)
    start_from_glorot(convolution)
    return nn.Sequential(nn.ReLU(), convolution, nn.BatchNorm2d(attention_dim), nn.ReLU())


def start_from_glorot(layer: nn.Conv1d | nn.Conv2d | nn.Linear) -> None:
    """Glorot-uniform weights and no bias."""
    nn.init.xavier_uniform_(layer.weight)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)


def covariance(samples: Float[Tensor, "B S V"]) -> Float[Tensor, "B V V"]:
    """Covariance of V variables over S samples, divided by S."""
    samples = samples.to(computing_dtype(samples))
    with full_precision(samples):
        centred = samples - samples.mean(1, keepdim=True)
        return centred.transpose(1, 2) @ centred / samples.shape[1]


def averaging(size: int, cells: int, like: Tensor) -> Float[Tensor, "cells size"]:
    """The matrix that averages ``size`` places into ``cells`` cells, as adaptive average pooling does.

    A product with it is deterministic on every device; the gradient of the built-in pooling is not on a GPU.
    """
    cell = torch.arange(cells, device=like.device)[:, None]
    place = torch.arange(size, device=like.device)
    first, last = cell * size // cells, ((cell + 1) * size - 1) // cells
    inside = ((first <= place) & (place <= last)).to(computing_dtype(like))
    return inside / inside.sum(1, keepdim=True)


def resample(
    x: Float[Tensor, "B C H W"], rows: Float[Tensor, "G H"], columns: Float[Tensor, "K W"]
) -> Float[Tensor, "B C G K"]:
    """Average a map along both of its sides."""
    with full_precision(x):
        return rows @ x.to(rows.dtype) @ columns.T
