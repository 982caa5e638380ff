"""Pool and embed features, and the output of an embedding model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import nn

from gspool.pooling.embedding import create_embedding

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from gspool.models.freezing import Freeze
    from gspool.pooling.layer import PoolingLayer

# Below this length a vector has no meaningful direction; dividing by less would only blow up the gradient.
SHORTEST = 1e-6


class Embedded(NamedTuple):
    """One unit vector per image, and what it was pooled from.

    ``weights`` (sum 1 over the N tokens, row by row on a ``grid`` of h x w) and ``attributes`` (sum 1 over
    the prototypes) are None if the pooling layer has none; ``grid`` is None if the tokens form none. ``pooled`` is the
    vector before it was scaled to unit length, which a classifier reads.
    """

    embedding: Float[Tensor, "B D"]
    weights: Float[Tensor, "B N"] | None = None
    attributes: Float[Tensor, "B M"] | None = None
    grid: tuple[int, int] | None = None
    pooled: Float[Tensor, "B D"] | None = None


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
        pooled=vector,
    )


class FeatureMapEmbedder(nn.Module):
    """Pool and embed feature maps that a frozen backbone has computed beforehand.

    Args:
        channels: channels of the feature maps.
        pooling: a name of `gspool.pooling.list()`.
        dim: length of the embedding.
        **options: options of the pooling layer.

    Example:
        >>> model = FeatureMapEmbedder(64, "gsp", 16, prototypes=8)
        >>> model.embed(torch.randn(2, 64, 8, 8)).embedding.shape
        torch.Size([2, 16])
    """

    def __init__(self, channels: int, pooling: str = "gsp", dim: int = 128, **options: Any) -> None:
        super().__init__()
        self.head = create_embedding(pooling, channels, dim, **options)

    @property
    def out_dim(self) -> int:
        """Length of the embedding."""
        return self.head.out_dim

    def freeze(self, freeze: Freeze) -> Self:
        """Do nothing: there is no backbone here, and the head always learns."""
        return self

    def embed(self, images: Float[Tensor, "B C H W"]) -> Embedded:
        """Embed feature maps [B, C, H, W], or tokens [B, N, C], as unit vectors."""
        return embed_features(self.head, images)

    def forward(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D"]:
        """Embed as unit vectors."""
        return self.embed(images).embedding
