"""Global average pooling, the layer that every other one is measured against."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from gspool.functional.checks import computing_dtype
from gspool.functional.results import Pooled
from gspool.pooling.layer import PoolingLayer, as_token_mask, as_tokens

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from torch import Tensor


class GAP(PoolingLayer):
    """Global average pooling: ``(1/n) sum_j f_j`` (Sec. 3).

    ``weights`` are uniform over the real tokens. The embedding follows the layer: both are linear, so the order changes
    nothing but the cost.

    Example:
        >>> features = torch.tensor([[[1.0, 0.0], [3.0, 4.0]]])
        >>> GAP(dim=2)(features)
        tensor([[2., 2.]])
    """

    embedding = "after"

    def __init__(self, dim: int) -> None:
        super().__init__(dim)

    def pool(self, x: Float[Tensor, "B C H W"], mask: Bool[Tensor, "B H W"] | None = None) -> Pooled:
        """Average the real tokens."""
        tokens, token_mask = as_tokens(x, self.dim), as_token_mask(mask, x)
        return Pooled(token_average(tokens, token_mask).to(x.dtype), weights=uniform_weights(tokens, token_mask))


def token_average(tokens: Float[Tensor, "B N C"], mask: Bool[Tensor, "B N"] | None = None) -> Float[Tensor, "B C"]:
    """Average the real tokens, in float32 at least."""
    dtype = computing_dtype(tokens)
    if mask is None:
        return tokens.mean(1, dtype=dtype)
    # Filling, not multiplying: padding may hold anything, and 0 * nan is nan.
    return tokens.masked_fill(~mask.unsqueeze(2), 0.0).sum(1, dtype=dtype) / mask.sum(1, keepdim=True)


def uniform_weights(tokens: Float[Tensor, "B N C"], mask: Bool[Tensor, "B N"] | None = None) -> Float[Tensor, "B N"]:
    """Return the same weight for every real token, in float32 at least."""
    if mask is None:
        mask = torch.ones(tokens.shape[:2], dtype=torch.bool, device=tokens.device)
    return mask.to(computing_dtype(tokens)) / mask.sum(1, keepdim=True)
