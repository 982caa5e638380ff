"""Global max pooling."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gspool.functional.results import Pooled
from gspool.pooling.layer import PoolingLayer, as_token_mask, as_tokens

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from torch import Tensor


class GMP(PoolingLayer):
    """Global max pooling: the largest value of each channel.

    Tokens that tie for the maximum share its gradient equally. There are no ``weights``: every channel may choose
    another token.

    Example:
        >>> import torch
        >>> GMP(dim=2)(torch.tensor([[[1.0, 0.0], [3.0, -4.0]]]))
        tensor([[3., 0.]])
    """

    embedding = "after"

    def __init__(self, dim: int) -> None:
        super().__init__(dim)

    def pool(self, x: Float[Tensor, "B C H W"], mask: Bool[Tensor, "B H W"] | None = None) -> Pooled:
        """Take the largest value of each channel among the real tokens."""
        return Pooled(token_maximum(as_tokens(x, self.dim), as_token_mask(mask, x)))


def token_maximum(tokens: Float[Tensor, "B N C"], mask: Bool[Tensor, "B N"] | None = None) -> Float[Tensor, "B C"]:
    """Take the largest value of each channel among the real tokens."""
    if mask is not None:
        tokens = tokens.masked_fill(~mask.unsqueeze(2), float("-inf"))
    # amax, not max: it splits the gradient among ties, so that the order of tokens does not matter there either.
    return tokens.amax(1)
