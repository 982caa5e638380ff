"""CroW: cross-dimensional weighting of positions and channels."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from gspool.functional.checks import computing_dtype
from gspool.functional.results import Pooled
from gspool.pooling.gap import token_average, uniform_weights
from gspool.pooling.layer import PoolingLayer, real_tokens

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from torch import Tensor


class CroW(PoolingLayer):
    """CroW: positions weighted by their activation, channels by how rarely they are active; no parameters.

    With ``f = relu(features)``, ``S_j = sum_c f_jc`` and ``Q_c = (1/n) sum_j sigmoid(f_jc)``::

        s_j = sqrt(S_j / |S|_2)        r_c = log(sum_d Q_d / Q_c)        pooled_c = r_c (1/n) sum_j s_j f_jc

    From "Cross-dimensional weighting for aggregated deep convolutional features" (Kalantidis et al., 2016). That paper
    counts non-zero values, which have no gradient, where the authors' reference implementation takes the mean sigmoid.

    ``weights`` are the ``s_j``, scaled to sum to one; uniform where an image has no positive feature at all.

    Raises:
        ValueError: if there is only one channel, which makes ``r`` zero for all features.

    Example:
        >>> out = CroW(dim=2).pool(torch.tensor([[[0.0, 0.0], [3.0, 4.0]]]))
        >>> out.weights
        tensor([[0., 1.]])
    """

    embedding = "after"

    def __init__(self, dim: int) -> None:
        super().__init__(dim)
        if dim < 2:
            raise ValueError(
                "CroW weighs channels against each other and needs dim >= 2, got 1: it would be zero always"
            )

    def pool(self, x: Float[Tensor, "B C H W"], mask: Bool[Tensor, "B H W"] | None = None) -> Pooled:
        """Weigh the real tokens by their saliency, then the channels by their rarity."""
        tokens, token_mask = real_tokens(x, mask, self.dim)
        features = tokens.to(computing_dtype(x)).relu()
        saliency = spatial_saliency(features)
        rarity = channel_rarity(features, token_mask)
        pooled = rarity * token_average(saliency.unsqueeze(2) * features, token_mask)
        return Pooled(pooled.to(x.dtype), weights=scaled_to_one(saliency, uniform_weights(features, token_mask)))


def spatial_saliency(features: Float[Tensor, "B N C"]) -> Float[Tensor, "B N"]:
    """Weigh each token by ``sqrt(S / |S|_2)``, S the sum of its non-negative features."""
    mass = features.sum(2)
    alive = mass > 0
    # The ratio does not depend on the unit, and in that of the largest S no square leaves the range of the dtype.
    largest = mass.detach().amax(1, keepdim=True)
    mass = mass / torch.where(largest > 0, largest, 1.0)
    norm = torch.linalg.vector_norm(mass, dim=1, keepdim=True)
    # The root has an infinite slope at 0 and |S| may be 0: dead tokens are taken out before, so that their gradient is
    # 0 and not the nan of 0 * inf.
    share = torch.where(alive, mass, 1.0) / torch.where(norm > 0, norm, 1.0)
    return torch.where(alive, share.sqrt(), 0.0)


def channel_rarity(features: Float[Tensor, "B N C"], mask: Bool[Tensor, "B N"] | None) -> Float[Tensor, "B C"]:
    """Weigh each channel by ``log(sum_d Q_d / Q_c)``, Q the mean sigmoid over the real tokens."""
    activity = token_average(features.sigmoid(), mask)
    return (activity.sum(1, keepdim=True) / activity).log()


def scaled_to_one(weights: Float[Tensor, "B N"], otherwise: Float[Tensor, "B N"]) -> Float[Tensor, "B N"]:
    """Scale non-negative weights to sum to one; where they are all zero, return the others instead."""
    total = weights.sum(1, keepdim=True)
    # The zero is taken out before the division, not after: its gradient would be nan.
    return torch.where(total > 0, weights / torch.where(total > 0, total, 1.0), otherwise)
