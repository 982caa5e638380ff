"""CBAM: gates on the channels, then on the places, then the average."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import nn

from gspool.functional.checks import computing_dtype, full_precision
from gspool.functional.results import Pooled
from gspool.pooling.gmp import token_maximum
from gspool.pooling.layer import PoolingLayer, as_token_mask, as_tokens, check_plane, without_padding

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from torch import Tensor


class CBAM(PoolingLayer):
    """Average pooling of a map that a channel gate and a spatial gate have reweighted (Woo et al., ECCV 2018).

    ``y = (1/n) sum_j s_j g * f_j``, with the channel gate ``g = sigmoid(MLP(mean_j f_j) + MLP(max_j f_j))`` and the
    spatial gate ``s = sigmoid(conv([mean_c g * f; max_c g * f]))``; one MLP reads both summaries.

    Defaults are those of the paper's comparison (Supp. 1.3, the authors' reference implementation): no reduction in
    the MLP, a 3x3 convolution without batch norm, and the embedding after the average. Masked places count as the zero
    padding of the convolution, so that a masked image and a cropped one give the same vector.

    The gates do not sum to one and differ by channel, so there are no ``weights``.

    Args:
        dim: number of feature channels.
        reduction: the hidden layer of the MLP has ``dim // reduction`` units.
        kernel_size: side of the spatial convolution, odd.

    Raises:
        ValueError: if an option is out of range, or, when called, if the features have no plane or do not fit ``dim``.

    Example:
        >>> CBAM(64)(torch.randn(2, 64, 7, 7)).shape
        torch.Size([2, 64])
    """

    embedding = "after"

    def __init__(self, dim: int, reduction: int = 1, kernel_size: int = 3) -> None:
        super().__init__(dim)
        if not isinstance(reduction, int) or not 1 <= reduction <= dim:
            raise ValueError(f"reduction divides the {dim} channels and must lie in 1..{dim}, got {reduction!r}")
        if not isinstance(kernel_size, int) or kernel_size < 1 or kernel_size % 2 == 0:
            raise ValueError(
                f"kernel_size must be odd and positive, so that the map keeps its size, got {kernel_size!r}"
            )
        self.squeeze = nn.Linear(dim, dim // reduction, bias=False)
        self.excite = nn.Linear(dim // reduction, dim, bias=False)
        self.locate = nn.Conv2d(2, 1, kernel_size, padding=kernel_size // 2, bias=False)
        for layer in (self.squeeze, self.excite, self.locate):
            nn.init.xavier_uniform_(layer.weight)

    def pool(self, x: Float[Tensor, "B C H W"], mask: Bool[Tensor, "B H W"] | None = None) -> Pooled:
        """Gate the channels, gate the places, take the average over the real places."""
        tokens = as_tokens(x, self.dim)
        check_plane(x, "CBAM needs the plane for its spatial convolution")
        valid = as_token_mask(mask, x)
        tokens = tokens.to(computing_dtype(x))
        highest = token_maximum(tokens, valid)
        tokens = without_padding(tokens, valid)
        count = tokens.shape[1] if valid is None else valid.sum(1, keepdim=True)
        gated = tokens * self.channel_gate(tokens.sum(1) / count, highest)[:, None]

        summary = torch.stack((gated.mean(2), gated.amax(2)), 1).unflatten(2, x.shape[2:])
        gate = torch.sigmoid(self.locate(summary.to(self.locate.weight.dtype))).flatten(1).to(tokens.dtype)
        with full_precision(x):
            pooled = torch.einsum("bn,bnc->bc", gate, gated) / count
        return Pooled(pooled.to(x.dtype))

    def channel_gate(self, average: Float[Tensor, "B C"], highest: Float[Tensor, "B C"]) -> Float[Tensor, "B C"]:
        """How far each channel is open, from the average and the highest value of the channels."""
        both = torch.stack((average, highest)).to(self.squeeze.weight.dtype)
        return torch.sigmoid(self.excite(F.relu(self.squeeze(both))).to(average.dtype).sum(0))
