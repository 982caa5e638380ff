"""Efficient Probing: learned queries attend to the raw tokens, each pools its own slice of the values."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from gspool.functional.checks import computing_dtype, full_precision
from gspool.functional.results import Pooled
from gspool.pooling.embedding import LocalEmbedding
from gspool.pooling.layer import PoolingLayer, attention_weights, real_tokens

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from torch import Tensor


class EP(PoolingLayer):
    """Attention of ``queries`` learned vectors, without key projection (Psomas et al., ICLR 2026).

    Query j weighs the tokens by ``a_j = softmax(q_j . f / sqrt(C))`` and pools the j-th slice of the values ``W f``:
    ``y = concat_j sum_n a_jn (W f_n)[slice j]``. ``weights`` are the mean of the ``a_j``.

    Args:
        dim: number of feature channels.
        out_dim: length of the output, a multiple of ``queries``; None keeps ``dim``.
        queries: number of learned queries.

    Raises:
        ValueError: if ``queries`` does not divide the output.

    Example:
        >>> out = EP(64, queries=4).pool(torch.randn(2, 64, 7, 7))
        >>> out.pooled.shape, out.weights.shape
        (torch.Size([2, 64]), torch.Size([2, 49]))
    """

    embedding = "inside"

    def __init__(self, dim: int, out_dim: int | None = None, queries: int = 4) -> None:
        super().__init__(dim, out_dim)
        if not isinstance(queries, int) or queries < 1 or self.out_dim % queries:
            raise ValueError(f"queries share the {self.out_dim} outputs equally and must divide them, got {queries!r}")
        self.queries = nn.Parameter(nn.init.trunc_normal_(torch.empty(queries, dim), std=0.02))
        self.embed = LocalEmbedding(dim, self.out_dim)

    def pool(self, x: Float[Tensor, "B C H W"], mask: Bool[Tensor, "B H W"] | None = None) -> Pooled:
        """Attend to the real tokens; each query pools its slice of the values."""
        tokens, valid = real_tokens(x, mask, self.dim)
        precise = computing_dtype(x)
        with full_precision(x):
            # The scores decide the weights through an exponential; they are not left to autocast.
            scores = tokens.to(precise) @ self.queries.to(precise).T / self.dim**0.5
            attention = attention_weights(scores.mT, valid)
        pooled = self.embed.slices(attention.to(tokens.dtype) @ tokens)
        return Pooled(pooled.to(x.dtype), weights=attention.mean(1))

    def extra_repr(self) -> str:
        """Name sizes and the number of queries."""
        return f"{super().extra_repr()}, queries={len(self.queries)}"
