"""SOLAR: every token adds what it attends to, then the generalized mean."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import nn

from gspool.functional.checks import computing_dtype
from gspool.functional.results import Pooled
from gspool.pooling.gemean import GeMean
from gspool.pooling.layer import PoolingLayer, real_tokens

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from torch import Tensor


class SOLAR(PoolingLayer):
    """Generalized mean of tokens enhanced by second-order attention (Ng et al., ECCV 2020).

    ``y = ((1/n) sum_j max(f'_j, 1e-6)^p)^(1/p)`` with ``f' = f + W_o A V + b_o`` and ``A = softmax(Q K' / sqrt(d))``;
    queries and keys are ``relu(batch_norm(W f + b))``, values ``W_v f + b_v``, all of width ``d``.

    Settings are those of the authors' reference implementation: no reduction of the width, ``p = 3`` to start with,
    shared by all channels and learned, the embedding after the mean. Padded tokens are not attended to, not averaged,
    and not part of the batch-norm statistics.

    Args:
        dim: number of feature channels.
        reduction: queries, keys and values have ``dim // reduction`` channels.
        p: the power to start from.
        learn_p: whether the power is learned.

    Raises:
        ValueError: if an option is out of range, or, when called, if the features do not fit ``dim``.

    Example:
        >>> SOLAR(64)(torch.randn(2, 64, 7, 7)).shape
        torch.Size([2, 64])
    """

    embedding = "after"

    def __init__(self, dim: int, reduction: int = 1, p: float = 3.0, learn_p: bool = True) -> None:
        super().__init__(dim)
        if not isinstance(reduction, int) or not 1 <= reduction <= dim:
            raise ValueError(f"reduction divides the {dim} channels and must lie in 1..{dim}, got {reduction!r}")
        width = dim // reduction
        self.query, self.key, self.value = nn.Linear(dim, width), nn.Linear(dim, width), nn.Linear(dim, width)
        self.query_norm, self.key_norm = nn.BatchNorm1d(width), nn.BatchNorm1d(width)
        self.output = nn.Linear(width, dim)
        for layer in (self.query, self.key, self.value, self.output):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)
        self.mean = GeMean(dim, p=p, learn_p=learn_p)

    def pool(self, x: Float[Tensor, "B C H W"], mask: Bool[Tensor, "B H W"] | None = None) -> Pooled:
        """Let the tokens attend to each other, add what they found, take the generalized mean."""
        tokens, valid = real_tokens(x, mask, self.dim)
        enhanced = tokens.to(computing_dtype(x)) + self.second_order(tokens.to(self.query.weight.dtype), valid)
        return Pooled(self.mean(enhanced, valid).to(x.dtype))

    def second_order(self, tokens: Float[Tensor, "B N C"], mask: Bool[Tensor, "B N"] | None) -> Float[Tensor, "B N C"]:
        """What every token gathers from the others."""
        query = F.relu(token_batch_norm(self.query_norm, self.query(tokens), mask))
        key = F.relu(token_batch_norm(self.key_norm, self.key(tokens), mask))
        value = self.value(tokens)
        attended = None if mask is None else mask[:, None]
        return self.output(F.scaled_dot_product_attention(query, key, value.to(query.dtype), attn_mask=attended))


def token_batch_norm(
    norm: nn.BatchNorm1d, tokens: Float[Tensor, "B N C"], mask: Bool[Tensor, "B N"] | None
) -> Float[Tensor, "B N C"]:
    """Batch norm over all real tokens of the batch.

    Without a mask, or in evaluation, this is the module itself. Otherwise mean and variance are taken over the real
    tokens only, and enter the running statistics as the module would enter them.
    """
    if mask is None or not norm.training:
        return norm(tokens.flatten(0, 1)).unflatten(0, tokens.shape[:2])
    precise = tokens.to(computing_dtype(tokens))
    padding = ~mask[..., None]
    count = mask.sum().to(precise.dtype)
    mean = precise.masked_fill(padding, 0.0).sum((0, 1)) / count
    variance = (precise - mean).masked_fill(padding, 0.0).square().sum((0, 1)) / count
    unbiased = variance * (count / (count - 1).clamp(min=1))
    statistics: Any = norm
    statistics.num_batches_tracked.add_(1)
    for running, of_batch in ((statistics.running_mean, mean), (statistics.running_var, unbiased)):
        running.add_(norm.momentum * (of_batch.detach().to(running.dtype) - running))
    normalised = (precise - mean) * torch.rsqrt(variance + norm.eps) * norm.weight + norm.bias
    return normalised.to(tokens.dtype)
