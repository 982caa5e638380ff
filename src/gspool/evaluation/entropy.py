"""How much a pooling layer selects: the entropy of its weights."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

# Above this relative entropy weights are nearly uniform: on 7 x 7 tokens their standard deviation is 28 % of the mean.
# A hard selection of 95 % of the tokens (mu = 0.95), the weakest that means something, stays below it.
FLAT_ENTROPY = 0.99


def relative_entropy(weights: Float[Tensor, "B N"]) -> Float[Tensor, B]:
    """Compute the entropy of each row relative to that of equal weights: 1 is average pooling, 0 a single token.

    Example:
        >>> relative_entropy(torch.tensor([[0.25, 0.25, 0.25, 0.25], [1.0, 0.0, 0.0, 0.0]]))
        tensor([1., 0.])
    """
    tokens = weights.shape[1]
    return torch.special.entr(weights).sum(1) / math.log(tokens) if tokens > 1 else torch.ones_like(weights[:, 0])
