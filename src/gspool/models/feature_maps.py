"""An embedding model on feature maps, for a frozen backbone whose maps were computed once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from torch import nn

from gspool.models.embedded import Embedded, embed_features
from gspool.pooling.embedding import create_embedding

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from gspool.models import Freeze


class FeatureMapEmbedder(nn.Module):
    """Pool and embed feature maps that a frozen backbone has computed beforehand.

    Args:
        channels: channels of the feature maps.
        pooling: a name of `gspool.pooling.list()`.
        dim: length of the embedding.
        **options: options of the pooling layer.

    Example:
        >>> import torch
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
