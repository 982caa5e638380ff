"""DeLF: a learned score for every token, and the mean of the scored tokens."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import nn

from gspool.functional.checks import computing_dtype, full_precision
from gspool.functional.results import Pooled
from gspool.pooling.layer import PoolingLayer, real_tokens

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from torch import Tensor


class DeLF(PoolingLayer):
    """Mean of the tokens, each times its attention score (Noh et al., ICCV 2017).

    ``y = (1/n) sum_j s_j f_j`` with ``s_j = softplus(v . relu(U f_j + b) + d)``; ``weights`` are ``s_j / sum_k s_k``.

    Scores are computed on the backbone's features and the embedding follows the mean, as in the authors' reference
    implementation. ``normalize=True`` divides by the sum of the scores instead of ``n``, so that the vector is a convex
    combination of the tokens; an embedding of unit length is the same either way.

    Args:
        dim: number of feature channels.
        hidden: units of the score's hidden layer.
        normalize: divide by the sum of the scores.

    Raises:
        ValueError: if an option is out of range, or, when called, if the features do not fit ``dim``.

    Example:
        >>> out = DeLF(64).pool(torch.randn(2, 64, 7, 7))
        >>> out.pooled.shape, out.weights.shape
        (torch.Size([2, 64]), torch.Size([2, 49]))
    """

    embedding = "after"

    def __init__(self, dim: int, hidden: int = 512, normalize: bool = False) -> None:
        super().__init__(dim)
        if not isinstance(hidden, int) or hidden < 1:
            raise ValueError(
                f"hidden is the width of the attention score and must be a positive integer, got {hidden!r}"
            )
        self.normalize = normalize
        self.features = nn.Linear(dim, hidden)
        self.score = nn.Linear(hidden, 1)
        for layer in (self.features, self.score):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)

    def pool(self, x: Float[Tensor, "B C H W"], mask: Bool[Tensor, "B H W"] | None = None) -> Pooled:
        """Score the tokens and take the mean; ``weights`` are the scores divided by their sum."""
        tokens, valid = real_tokens(x, mask, self.dim)
        precise = computing_dtype(x)
        logits = self.score(F.relu(self.features(tokens.to(self.score.weight.dtype)))).squeeze(2)
        log_scores = log_softplus(logits.to(precise))
        if valid is not None:
            log_scores = log_scores.masked_fill(~valid, -torch.inf)
        weights = log_scores.softmax(1)
        count = tokens.shape[1] if valid is None else valid.sum(1, keepdim=True)
        factors = weights if self.normalize else log_scores.exp() / count
        with full_precision(x):
            pooled = torch.einsum("bn,bnc->bc", factors, tokens.to(precise))
        return Pooled(pooled.to(x.dtype), weights=weights)

    def extra_repr(self) -> str:
        """Name the sizes and the choice of scale."""
        return f"{super().extra_repr()}, hidden={self.features.out_features}, normalize={self.normalize}"


def log_softplus(logits: Float[Tensor, "*B"]) -> Float[Tensor, "*B"]:
    """Take the logarithm of the softplus, which is the logit itself once ``1 + exp(logit)`` rounds to 1.

    Scores may then underflow all at once, and the weights still compare them.
    """
    lowest = math.log(torch.finfo(logits.dtype).eps)
    return torch.where(logits < lowest, logits, F.softplus(logits.clamp(min=lowest)).log())
