"""The pooling layers that timm's users know, as timm itself writes them, behind this package's interface."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import nn

from gspool.functional.checks import computing_dtype
from gspool.functional.results import Pooled
from gspool.pooling.layer import PoolingLayer, as_tokens, check_heads, real_tokens

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from torch import Tensor


class AvgMax(PoolingLayer):
    """timm's ``avgmax``: half the average plus half the maximum.

    Raises:
        ImportError: if timm is missing or older than 1.0.23; so do all layers of this file.
        ValueError: for a mask, which timm's module does not take.

    Example:
        >>> AvgMax(dim=2)(torch.tensor([[[1.0, 0.0], [3.0, -4.0]]]))
        tensor([[ 2.5000, -1.0000]])
    """

    embedding = "after"
    pool_type = "avgmax"

    def __init__(self, dim: int) -> None:
        super().__init__(dim)
        self.timm = timm_layer("SelectAdaptivePool2d")(pool_type=self.pool_type, flatten=True)

    def pool(self, x: Float[Tensor, "B C H W"], mask: Bool[Tensor, "B H W"] | None = None) -> Pooled:
        """Pool with timm's module."""
        refuse_mask(mask, self.pool_type)
        return Pooled(self.timm(as_map(x, self.dim)))


class CatAvgMax(AvgMax):
    """timm's ``catavgmax``: the average and the maximum, one after the other, so twice as long.

    Raises:
        ValueError: for a mask, which timm's module does not take.

    Example:
        >>> CatAvgMax(dim=2)(torch.tensor([[[1.0, 0.0], [3.0, -4.0]]]))
        tensor([[ 2., -2.,  3.,  0.]])
    """

    pool_type = "catavgmax"

    def __init__(self, dim: int) -> None:
        super().__init__(dim)
        self.out_dim = 2 * dim


class AttentionPool(PoolingLayer):
    """timm's ``AttentionPoolLatent``: one learned query attends to the tokens; a projection and an MLP follow.

    Args:
        dim: number of channels.
        num_heads: number of attention heads; it divides ``dim``.
        mlp_ratio: width of the MLP relative to ``dim``.

    Raises:
        ValueError: if ``num_heads`` does not divide ``dim``.

    Example:
        >>> AttentionPool(dim=16, num_heads=4)(torch.rand(2, 16, 3, 5)).shape
        torch.Size([2, 16])
    """

    embedding = "after"

    def __init__(self, dim: int, num_heads: int = 8, mlp_ratio: float = 4.0) -> None:
        super().__init__(dim)
        check_heads(dim, num_heads)
        self.timm = timm_layer("AttentionPoolLatent")(dim, num_heads=num_heads, mlp_ratio=mlp_ratio)

    def pool(self, x: Float[Tensor, "B C H W"], mask: Bool[Tensor, "B H W"] | None = None) -> Pooled:
        """Pool the real tokens with timm's module."""
        tokens, token_mask = real_tokens(x, mask, self.dim)
        if token_mask is None:
            return Pooled(self.timm(tokens).to(x.dtype))
        padding = ~token_mask[:, None, None, :]
        # Added to the scores, because one of timm's two code paths adds whatever it is given.
        bias = torch.zeros_like(padding, dtype=x.dtype).masked_fill(padding, float("-inf"))
        return Pooled(self.timm(tokens, attn_mask=bias).to(x.dtype))


class SimPool(PoolingLayer):
    """timm's ``SimPool``: the average of the tokens attends to them ("Keep It SimPool", Psomas et al., 2023).

    Args:
        dim: number of channels.
        num_heads: number of attention heads; it divides ``dim``.
        gamma: power by which values are averaged, as in a generalized mean; None averages them as they are.

    Raises:
        ValueError: if ``num_heads`` does not divide ``dim``, or for a mask, which timm's module does not take.

    Example:
        >>> SimPool(dim=16)(torch.rand(2, 16, 3, 5)).shape
        torch.Size([2, 16])
    """

    embedding = "after"

    def __init__(self, dim: int, num_heads: int = 1, gamma: float | None = None) -> None:
        super().__init__(dim)
        check_heads(dim, num_heads)
        if gamma is not None and not gamma > 0:
            raise ValueError(f"gamma is the power of an average and must be > 0 or None, got {gamma}")
        self.timm = timm_layer("SimPool1d")(dim, num_heads=num_heads, gamma=gamma)

    def pool(self, x: Float[Tensor, "B C H W"], mask: Bool[Tensor, "B H W"] | None = None) -> Pooled:
        """Pool with timm's module."""
        refuse_mask(mask, "simpool")
        return Pooled(self.timm(as_tokens(x, self.dim)).to(x.dtype))


class LSE(PoolingLayer):
    """timm's ``LsePlus``: ``(1/r) log((1/n) sum_j exp(r f_j))``, a smooth maximum for large r, an average for small.

    Args:
        dim: number of channels.
        r: the sharpness to start from.
        learn_r: whether it is a parameter.

    Raises:
        ValueError: if ``r`` is not positive and finite, or for a mask, which timm's module does not take.

    Example:
        >>> LSE(dim=1, r=1e3)(torch.tensor([[[1.0], [3.0]]])).round(decimals=2)
        tensor([[3.]], grad_fn=<RoundBackward1>)
    """

    embedding = "after"

    def __init__(self, dim: int, r: float = 10.0, learn_r: bool = True) -> None:
        super().__init__(dim)
        if not (math.isfinite(r) and r > 0):
            raise ValueError(f"r is the sharpness of log-sum-exp pooling and must be > 0 and finite, got {r}")
        self.timm = timm_layer("LsePlus1d")(r=float(r), r_learnable=learn_r)

    def pool(self, x: Float[Tensor, "B C H W"], mask: Bool[Tensor, "B H W"] | None = None) -> Pooled:
        """Pool with timm's module, in float32 at least."""
        refuse_mask(mask, "lse")
        return Pooled(self.timm(as_tokens(x, self.dim).to(computing_dtype(x))).to(x.dtype))


def timm_layer(name: str) -> type[nn.Module]:
    """Fetch a class of ``timm.layers``, only now: the package itself needs torch and nothing more.

    Raises:
        ImportError: if timm is not installed or too old to have the class, with the command that installs it.
    """
    try:
        from timm import layers
    except ImportError as missing:
        raise ImportError(f'{name} is timm\'s own layer: install timm with pip install "gspool[train]"') from missing
    if not hasattr(layers, name):
        raise ImportError(
            f'this timm has no {name}, which came with 1.0.23: update with pip install -U "gspool[train]"'
        )
    found: type[nn.Module] = getattr(layers, name)
    return found


def as_map(x: Float[Tensor, "B C H W"], dim: int) -> Float[Tensor, "B C H W"]:
    """Return tokens [B, N, D] as a map [B, D, N, 1], and a map as it is."""
    tokens = as_tokens(x, dim)
    return x if x.ndim == 4 else tokens.transpose(1, 2).unsqueeze(3)


def refuse_mask(mask: Bool[Tensor, "B H W"] | None, name: str) -> None:
    """Refuse a mask where timm's module takes none."""
    if mask is not None:
        raise ValueError(
            f"{name} is timm's own module, which takes no mask; leave it out, or take gap+gmp, gemean or attention"
        )
