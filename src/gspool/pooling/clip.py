"""CLIP's attention pool: the average of the map attends to the map, with learned positions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from gspool.functional.results import Pooled
from gspool.pooling.layer import PoolingLayer, as_tokens, check_heads, check_plane
from gspool.pooling.timm_pools import refuse_mask, timm_layer

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from torch import Tensor


class CLIPPool(PoolingLayer):
    """timm's ``AttentionPool2d``, the pooling of CLIP's ResNets (Radford et al., ICML 2021).

    Args:
        dim: number of feature channels.
        out_dim: length of the output; None keeps ``dim``.
        size: side of the map that the positions are made for; other maps get them interpolated.
        num_heads: attention heads, a divisor of ``dim``.

    Raises:
        ImportError: if timm is missing.
        ValueError: if a size does not fit, for tokens without a grid, and for a mask.

    Example:
        >>> import torch
        >>> CLIPPool(64, out_dim=16)(torch.randn(2, 64, 7, 7)).shape
        torch.Size([2, 16])
    """

    embedding = "inside"

    def __init__(self, dim: int, out_dim: int | None = None, size: int = 7, num_heads: int = 8) -> None:
        super().__init__(dim, out_dim)
        check_heads(dim, num_heads)
        if not isinstance(size, int) or size < 1:
            raise ValueError(f"size is the side of the feature map and must be a positive integer, got {size!r}")
        self.timm = timm_layer("AttentionPool2d")(
            dim, feat_size=size, out_features=self.out_dim, num_heads=num_heads, head_dim=None
        )

    def pool(self, x: Float[Tensor, "B C H W"], mask: Bool[Tensor, "B H W"] | None = None) -> Pooled:
        """Pool a map with timm's module."""
        refuse_mask(mask, "clip")
        as_tokens(x, self.dim)
        check_plane(x, "clip has positions")
        # timm cannot reshape an empty batch; a graph must not depend on the size of one.
        if not torch.compiler.is_compiling() and not len(x):
            return Pooled(x.sum((2, 3))[:, :1].expand(-1, self.out_dim))
        return Pooled(self.timm(x).to(x.dtype))
