"""The output of an embedding model."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from gspool.pooling.layer import PoolingLayer

# Below this length a vector has no meaningful direction; dividing by less would only blow up the gradient.
SHORTEST = 1e-6


class Embedded(NamedTuple):
    """One unit vector per image, and what it was pooled from.

    ``weights`` (sum 1 over the N tokens, row by row on a ``grid`` of h x w) and ``attributes`` (sum 1 over
    the prototypes) are None if the pooling layer has none; ``grid`` is None if the tokens form none.
    """

    embedding: Float[Tensor, "B D"]
    weights: Float[Tensor, "B N"] | None = None
    attributes: Float[Tensor, "B M"] | None = None
    grid: tuple[int, int] | None = None


def embed_features(
    head: PoolingLayer, features: Float[Tensor, "B C h w"], class_token: Float[Tensor, "B C"] | None = None
) -> Embedded:
    """Pool and embed features, with the class token if the head takes one, and scale to unit length."""
    pooled = head.pool(features, *((None, class_token) if head.takes_class_token else ()))
    # Half precision ends here: a norm of 128 squares overflows float16, and the losses compare small angles.
    vector = pooled.pooled.to(torch.promote_types(pooled.pooled.dtype, torch.float32))
    return Embedded(
        embedding=F.normalize(vector, dim=-1, eps=SHORTEST),
        weights=pooled.weights,
        attributes=pooled.attributes,
        grid=(features.shape[2], features.shape[3]) if features.ndim == 4 else None,
    )
