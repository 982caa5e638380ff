"""WELDON pooling: the strongest and the weakest responses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gspool.functional.checks import computing_dtype, values_can_be_read
from gspool.functional.results import Pooled
from gspool.pooling.layer import PoolingLayer, as_token_mask, as_tokens

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from torch import Tensor


class WELDON(PoolingLayer):
    """WELDON: each channel's ``k`` largest values summed, plus its ``k_min`` smallest.

    From "WELDON: Weakly supervised learning of deep convolutional neural networks" (Durand et al., 2016), with the
    three and three of the authors' reference implementation. With ``k = n`` it is twice the sum.

    There are no ``weights``: every channel chooses its own tokens.

    Args:
        dim: number of channels.
        k: how many of the largest values are summed.
        k_min: how many of the smallest; ``k`` by default, and 0 leaves them out.

    Raises:
        ValueError: if ``k`` is not positive or ``k_min`` negative; at the call, if an image has too few tokens.

    Example:
        >>> import torch
        >>> WELDON(dim=1, k=2, k_min=1)(torch.tensor([[[1.0], [5.0], [-3.0], [2.0]]]))
        tensor([[4.]])
    """

    embedding = "before"

    def __init__(self, dim: int, k: int = 3, k_min: int | None = None) -> None:
        super().__init__(dim)
        self.k = k
        self.k_min = k if k_min is None else k_min
        if self.k < 1 or self.k_min < 0:
            raise ValueError(
                f"k counts the largest values and must be at least 1, k_min the smallest and must be at least 0; "
                f"got k={self.k}, k_min={self.k_min}"
            )

    def pool(self, x: Float[Tensor, "B C H W"], mask: Bool[Tensor, "B H W"] | None = None) -> Pooled:
        """Sum the largest and the smallest values of each channel among the real tokens."""
        tokens, token_mask = as_tokens(x, self.dim), as_token_mask(mask, x)
        self._refuse_too_few(tokens, token_mask)
        dtype = computing_dtype(x)
        largest, smallest = tokens, tokens
        if token_mask is not None:
            padding = ~token_mask.unsqueeze(2)
            largest = tokens.masked_fill(padding, float("-inf"))
            smallest = tokens.masked_fill(padding, float("inf"))
        pooled = largest.topk(self.k, dim=1).values.sum(1, dtype=dtype)
        pooled = pooled + smallest.topk(self.k_min, dim=1, largest=False).values.sum(1, dtype=dtype)
        return Pooled(pooled.to(x.dtype))

    def _refuse_too_few(self, tokens: Float[Tensor, "B N C"], mask: Bool[Tensor, "B N"] | None) -> None:
        needed, fewest = max(self.k, self.k_min), tokens.shape[1]
        # Where values cannot be read (a compiled graph, a GPU), a mask that leaves too few gives infinities.
        if mask is not None and values_can_be_read(mask):
            fewest = int(mask.sum(1).min())
        if fewest < needed:
            raise ValueError(
                f"WELDON sums the {self.k} largest and the {self.k_min} smallest values of each channel and needs "
                f"{needed} tokens, got an image with {fewest}; lower k or k_min, or take a larger map"
            )

    def extra_repr(self) -> str:
        """Name size and counts in `print(model)`."""
        return f"{super().extra_repr()}, k={self.k}, k_min={self.k_min}"
