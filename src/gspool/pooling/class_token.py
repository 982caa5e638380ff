"""The class token of a transformer as a pooling layer, alone or beside any other layer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args

import torch
from torch import nn
from torch.nn.functional import normalize

from gspool.functional.results import Pooled
from gspool.pooling.embedding import LocalEmbedding
from gspool.pooling.layer import PoolingLayer

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from torch import Tensor

Join = Literal["sum", "concat"]


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
    """Join the class token, through a projection of its own, with what another layer pools.

    ``sum`` adds them: ``y = W cls + scale * pool(x)``, where ``scale`` is a learned number a channel that starts at
    ``start``. ``concat`` puts unit vectors side by side, twice as long: ``y = [v / |v|, weight * u / |u|]`` with
    ``v = W cls`` and ``u = pool(x)``. There each part has a loss of its own, so that no gradient depends on ``weight``,
    a buffer: `gspool train` and `compare` choose it on the classes that they watch.

    Args:
        layer: pools (and embeds) the patch tokens.
        dim: channels of the class token.
        start: first value of the scale, or of the weight; at 0 the output is the class token alone.
        join: ``sum`` or ``concat``.

    Raises:
        ValueError: if there is no such ``join``; when called without a class token.

    Example:
        >>> from gspool.pooling.gap import GAP
        >>> layer = WithClassToken(GAP(8), dim=8)
        >>> layer.pool(torch.rand(2, 8, 4, 4), class_token=torch.ones(2, 8)).pooled.shape
        torch.Size([2, 8])
    """

    embedding = "inside"
    takes_class_token = True
    weight: Tensor

    def __init__(self, layer: PoolingLayer, dim: int, start: float = 0.3, join: Join = "sum") -> None:
        if join not in get_args(Join):
            raise ValueError(f"join is how class token and patches become one vector, sum or concat, got {join!r}")
        parts = (layer.out_dim, layer.out_dim) if join == "concat" else ()
        super().__init__(dim, sum(parts) or layer.out_dim)
        self.layer, self.parts = layer, parts
        self.project = LocalEmbedding(dim, layer.out_dim)
        if join == "sum":
            self.scale = nn.Parameter(torch.full((layer.out_dim,), float(start)))
        else:
            self.register_buffer("weight", torch.tensor(float(start)))

    def pool(
        self,
        x: Float[Tensor, "B C H W"],
        mask: Bool[Tensor, "B H W"] | None = None,
        class_token: Float[Tensor, "B C"] | None = None,
    ) -> Pooled:
        """Pool the patch tokens and join them with the class token; weights and attributes are those of the layer."""
        token = self.class_part(checked_class_token(class_token, self.dim, "+cls"))
        out = self.layer.pool(x, mask)
        if self.parts:
            joined = torch.cat((token, self.weight * normalize(out.pooled.float(), dim=1)), 1)
        else:
            joined = token + self.scale * out.pooled
        return out._replace(pooled=joined.to(x.dtype))

    def class_part(self, class_token: Float[Tensor, "B C"]) -> Float[Tensor, "B D"]:
        """Return what the class token gives to the output."""
        token = self.project(class_token)
        return normalize(token.float(), dim=1) if self.parts else token


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
