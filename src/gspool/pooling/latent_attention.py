"""MAP: the latent attention that ends SigLIP, timm's module behind this package's interface."""

from __future__ import annotations

from torch import nn

from gspool.pooling.timm_pools import AttentionPool, timm_layer


class MAP(AttentionPool):
    """Multi-head attention pooling (Zhai et al., CVPR 2022): a learned query attends; layer norm and an MLP follow.

    Args:
        dim: number of channels.
        num_heads: number of attention heads; it divides ``dim``.
        mlp_ratio: width of the MLP relative to ``dim``.

    Raises:
        ImportError: if timm is missing.
        ValueError: if ``num_heads`` does not divide ``dim``.

    Example:
        >>> import torch
        >>> MAP(dim=16, num_heads=4)(torch.rand(2, 16, 3, 5)).shape
        torch.Size([2, 16])
    """

    def __init__(self, dim: int, num_heads: int = 8, mlp_ratio: float = 4.0) -> None:
        super().__init__(dim, num_heads, mlp_ratio)
        self.timm = timm_layer("AttentionPoolLatent")(
            dim, num_heads=num_heads, mlp_ratio=mlp_ratio, norm_layer=nn.LayerNorm
        )
