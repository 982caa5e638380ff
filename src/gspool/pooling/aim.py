"""AIM and V-JEPA probes: learned queries attend through key and value projections, with or without a block around."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from gspool.functional.checks import computing_dtype
from gspool.functional.results import Pooled
from gspool.pooling.layer import PoolingLayer, attention_weights, check_heads, real_tokens

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from torch import Tensor


class AIM(PoolingLayer):
    """Multi-head cross-attention of learned queries to normalised tokens.

    As AIM probes (El-Nouby et al., ICML 2024): batch norm without parameters on the tokens, key and value projections
    without bias, no query projection, the mean over the queries. ``block=True`` adds what the probe of V-JEPA has
    around the attention (Bardes et al., 2024): an output projection, the query as residual, layer norm and an MLP.
    ``weights`` are the mean over queries and heads.

    Args:
        dim: number of feature channels.
        queries: number of learned queries.
        num_heads: attention heads, a divisor of ``dim``.
        block: add projection, residual and MLP.

    Raises:
        ValueError: if a number is not positive or ``num_heads`` does not divide ``dim``.

    Example:
        >>> out = AIM(64, num_heads=8).pool(torch.randn(2, 64, 7, 7))
        >>> out.pooled.shape, out.weights.shape
        (torch.Size([2, 64]), torch.Size([2, 49]))
    """

    embedding = "after"

    def __init__(self, dim: int, queries: int = 1, num_heads: int = 8, block: bool = False) -> None:
        super().__init__(dim)
        if not isinstance(queries, int) or queries < 1:
            raise ValueError(
                f"queries is the number of learned queries and must be a positive integer, got {queries!r}"
            )
        check_heads(dim, num_heads)
        self.num_heads = num_heads
        self.norm = nn.BatchNorm1d(dim, affine=False, eps=1e-6)
        self.queries = nn.Parameter(torch.randn(queries, dim) * 0.02)
        self.key, self.value = nn.Linear(dim, dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.block = _Block(dim) if block else None

    def pool(self, x: Float[Tensor, "B C H W"], mask: Bool[Tensor, "B H W"] | None = None) -> Pooled:
        """Attend to the real tokens, head by head."""
        tokens, valid = real_tokens(x, mask, self.dim)
        tokens = self._normalised(tokens.to(self.key.weight.dtype), valid)
        heads = (self.num_heads, -1)
        queries = self.queries.unflatten(1, heads).transpose(0, 1)
        keys, values = (part(tokens).unflatten(2, heads).transpose(1, 2) for part in (self.key, self.value))
        scale = (self.dim // self.num_heads) ** -0.5
        scores = (queries.to(keys.dtype) @ keys.mT).to(computing_dtype(x)) * scale
        weights = attention_weights(scores.flatten(1, 2), valid).unflatten(1, (self.num_heads, -1))
        attended = (weights.to(values.dtype) @ values).transpose(1, 2).flatten(2)
        if self.block is not None:
            attended = self.block(attended, self.queries)
        return Pooled(attended.mean(1).to(x.dtype), weights=weights.mean((1, 2)))

    def _normalised(self, tokens: Float[Tensor, "B N C"], valid: Bool[Tensor, "B N"] | None) -> Float[Tensor, "B N C"]:
        if valid is None or not self.training:
            return self.norm(tokens.mT.contiguous()).mT
        # In training the statistics are those of the real tokens alone.
        normalised = torch.zeros_like(tokens)
        normalised[valid] = self.norm(tokens[valid]).to(tokens.dtype)
        return normalised

    def extra_repr(self) -> str:
        """Name sizes and the number of queries."""
        return f"{super().extra_repr()}, queries={len(self.queries)}, num_heads={self.num_heads}"


class _Block(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.project = nn.Linear(dim, dim)
        self.norm = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, attended: Float[Tensor, "B Q C"], queries: Float[Tensor, "Q C"]) -> Float[Tensor, "B Q C"]:
        hidden = queries + self.project(attended)
        return hidden + self.mlp(self.norm(hidden))
