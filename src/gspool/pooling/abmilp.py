"""ABMILP: a small network scores every token, and a softmax of the scores weighs them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from gspool.functional.checks import computing_dtype, full_precision
from gspool.functional.results import Pooled
from gspool.pooling.layer import PoolingLayer, attention_weights, real_tokens

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from torch import Tensor


class ABMILP(PoolingLayer):
    """Attention-based multiple-instance pooling (Ilse et al., ICML 2018), a probe for patch tokens.

    ``y = sum_n a_n f_n`` with ``a = softmax(v . tanh(U f + b))``; ``gated=True`` multiplies the hidden units by a
    second, sigmoid branch.

    Args:
        dim: number of feature channels.
        hidden: units of the score's hidden layer.
        gated: whether the hidden units are gated.

    Raises:
        ValueError: if ``hidden`` is not a positive integer.

    Example:
        >>> import torch
        >>> out = ABMILP(64).pool(torch.randn(2, 64, 7, 7))
        >>> out.pooled.shape, out.weights.shape
        (torch.Size([2, 64]), torch.Size([2, 49]))
    """

    embedding = "after"

    def __init__(self, dim: int, hidden: int = 128, gated: bool = False) -> None:
        super().__init__(dim)
        if not isinstance(hidden, int) or hidden < 1:
            raise ValueError(f"hidden is the width of the score and must be a positive integer, got {hidden!r}")
        self.features = nn.Linear(dim, hidden)
        self.gate = nn.Linear(dim, hidden) if gated else None
        self.score = nn.Linear(hidden, 1)

    def pool(self, x: Float[Tensor, "B C H W"], mask: Bool[Tensor, "B H W"] | None = None) -> Pooled:
        """Score the real tokens and take their weighted mean."""
        tokens, valid = real_tokens(x, mask, self.dim)
        precise = computing_dtype(x)
        raw = tokens.to(self.score.weight.dtype)
        hidden = self.features(raw).tanh()
        if self.gate is not None:
            hidden = hidden * self.gate(raw).sigmoid()
        weights = attention_weights(self.score(hidden).mT.to(precise), valid)
        with full_precision(x):
            pooled = (weights @ tokens.to(precise)).squeeze(1)
        return Pooled(pooled.to(x.dtype), weights=weights.squeeze(1))

    def extra_repr(self) -> str:
        """Name sizes and the gate."""
        return f"{super().extra_repr()}, hidden={self.features.out_features}, gated={self.gate is not None}"
