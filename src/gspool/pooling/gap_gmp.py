"""The sum of average and max pooling."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gspool.functional.results import Pooled
from gspool.pooling.gap import token_average
from gspool.pooling.gmp import token_maximum
from gspool.pooling.layer import PoolingLayer, as_token_mask, as_tokens

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from torch import Tensor


class GAPGMP(PoolingLayer):
    """GAP+GMP: the plain sum of average and maximum, as in the code of Proxy Anchor (Kim et al., 2020).

    timm's ``avgmax`` is half of it.

    Example:
        >>> import torch
        >>> GAPGMP(dim=2)(torch.tensor([[[1.0, 0.0], [3.0, -4.0]]]))
        tensor([[ 5., -2.]])
    """

    embedding = "after"

    def __init__(self, dim: int) -> None:
        super().__init__(dim)

    def pool(self, x: Float[Tensor, "B C H W"], mask: Bool[Tensor, "B H W"] | None = None) -> Pooled:
        """Add the average of the real tokens to their maximum."""
        tokens, token_mask = as_tokens(x, self.dim), as_token_mask(mask, x)
        return Pooled((token_average(tokens, token_mask) + token_maximum(tokens, token_mask)).to(x.dtype))
