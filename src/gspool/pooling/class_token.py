"""The class token of a transformer as a pooling layer, alone or beside any other layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from gspool.functional.results import Pooled
from gspool.pooling.embedding import LocalEmbedding
from gspool.pooling.layer import PoolingLayer

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from torch import Tensor


class ClassToken(PoolingLayer):
    """Return the class token that the backbone computed; the patch tokens are not looked at.

    Raises:
        ValueError: when called without a class token.

    Example:
        >>> ClassToken(8).pool(torch.rand(2, 8, 4, 4), class_token=torch.ones(2, 8)).pooled.shape
        torch.Size([2, 8])
    """

    embedding = "after"
    takes_class_token = True

    def pool(
        self,
        x: Float[Tensor, "B C H W"],
        mask: Bool[Tensor, "B H W"] | None = None,
        class_token: Float[Tensor, "B C"] | None = None,
    ) -> Pooled:
        """Return the class token."""
        return Pooled(checked_class_token(class_token, self.dim, "cls"))


class WithClassToken(PoolingLayer):
    """Add the class token, through a projection of its own, to what another layer pools.

    ``y = W cls + scale * pool(x)``. ``scale`` is a learned number a channel that starts at ``start``; at 0 the layer
    starts as the class token alone.

    Args:
        layer: pools (and embeds) the patch tokens.
        dim: channels of the class token.
        start: first value of ``scale``.

    Raises:
        ValueError: when called without a class token.

    Example:
        >>> from gspool.pooling.gap import GAP
        >>> layer = WithClassToken(GAP(8), dim=8)
        >>> layer.pool(torch.rand(2, 8, 4, 4), class_token=torch.ones(2, 8)).pooled.shape
        torch.Size([2, 8])
    """

    embedding = "inside"
    takes_class_token = True

    def __init__(self, layer: PoolingLayer, dim: int, start: float = 0.3) -> None:
        super().__init__(dim, layer.out_dim)
        self.layer = layer
        self.project = LocalEmbedding(dim, layer.out_dim)
        self.scale = nn.Parameter(torch.full((layer.out_dim,), float(start)))

    def pool(
        self,
        x: Float[Tensor, "B C H W"],
        mask: Bool[Tensor, "B H W"] | None = None,
        class_token: Float[Tensor, "B C"] | None = None,
    ) -> Pooled:
        """Pool the patch tokens and add the class token; weights and attributes are those of the layer."""
        token = checked_class_token(class_token, self.dim, "+cls")
        out = self.layer.pool(x, mask)
        return out._replace(pooled=(self.project(token) + self.scale * out.pooled).to(x.dtype))


def checked_class_token(class_token: Float[Tensor, "B C"] | None, dim: int, name: str) -> Float[Tensor, "B C"]:
    """Return the class token, refusing none and a wrong width.

    Raises:
        ValueError: if there is none, or it has another width than the layer.
    """
    if class_token is None:
        raise ValueError(
            f"{name} needs the class token of a transformer; this backbone gives none. Pool its patch tokens with "
            "another layer (gap, gsp, ep …), or choose a backbone with a class token"
        )
    if class_token.ndim != 2 or class_token.shape[1] != dim:
        raise ValueError(f"the class token must be [B, {dim}], got shape {tuple(class_token.shape)}")
    return class_token
