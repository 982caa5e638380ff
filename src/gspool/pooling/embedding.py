"""Pooling with its embedding: what an embedding model puts after its backbone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, cast

import torch
from torch import nn
from torch.nn.functional import conv2d, linear

from gspool.functional.results import Pooled
from gspool.pooling.layer import PoolingLayer, as_token_mask, as_tokens, real_tokens, without_padding
from gspool.pooling.registry import check_options, joining_options, layer_class, without_class_token

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from torch import Tensor

    from gspool.pooling.gsp import GSP


def create_embedding(
    name: str, dim: int, out_dim: int | None, *, embedding: Literal["before", "after"] | None = None, **options: Any
) -> PoolingLayer:
    """Make a pooling layer and the linear embedding that belongs to it, from ``dim`` channels to ``out_dim``.

    The embedding is a 1x1 convolution without bias, Glorot-uniform at the start. It stands where the layer's class
    attribute ``embedding`` puts it: before the layer (GSP: weights are computed on, and applied to, embedded features),
    after it (a maximum, or a power, is taken of the backbone's own features), or inside.

    Args:
        name: one of `list()`.
        dim: number of channels of the backbone's features.
        out_dim: length of the embedding; None pools the features as they are, without one. A layer with sizes of its
            own may give another: read ``layer.out_dim``.
        embedding: put it ``before`` or ``after`` the layer instead.
        **options: keyword arguments of the layer's class.

    Raises:
        ValueError: if there is no such layer, option or place for the embedding, or a size is not a positive integer.
        ImportError: if the layer is one of timm's and timm is not installed.

    Example:
        >>> import torch
        >>> head = create_embedding("gmp", dim=2048, out_dim=128)
        >>> head(torch.rand(2, 2048, 7, 7)).shape
        torch.Size([2, 128])
    """
    check_options(name, options)
    base, with_class_token = without_class_token(name)
    if with_class_token:
        from gspool.pooling.class_token import WithClassToken

        joining = joining_options(options)
        return WithClassToken(create_embedding(base, dim, out_dim, embedding=embedding, **options), dim, *joining)
    layer = layer_class(name)
    if out_dim is not None and (not isinstance(out_dim, int) or out_dim < 1):
        raise ValueError(f"out_dim is the length of the embedding, a positive integer or None, got {out_dim!r}")
    if embedding not in (None, "before", "after"):
        raise ValueError(f"embedding says where the embedding stands, 'before' or 'after' the layer, got {embedding!r}")
    if layer.embedding == "inside":
        if embedding is not None:
            raise ValueError(f"{name} has its embedding inside, so it cannot stand {embedding} it")
        return layer(dim, out_dim=out_dim or dim, **options)
    if out_dim is None:
        return PoolThenEmbed(layer(dim, **options), None)
    # Keys are computed from the backbone's features, which say more than embedded ones.
    if not options.get("keys") and (embedding or layer.embedding) == "before":
        return EmbedThenPool(dim, layer(out_dim, **options))
    embedded = GroupsThenEmbed if options.get("groups", 1) > 1 else PoolThenEmbed
    return embedded(layer(dim, **options), out_dim)


def check_head_options(name: str, options: Mapping[str, Any]) -> None:
    """Check options of `create_embedding`: those of the layer, and ``embedding``, the place of the embedding.

    Raises:
        ValueError: if one does not exist, or has a word in the place of a number.
    """
    check_options(name, {option: value for option, value in options.items() if option != "embedding"})


class LocalEmbedding(nn.Linear):
    """A linear map of every feature by itself: of a map (a 1x1 convolution), of tokens, or of vectors.

    Example:
        >>> import torch
        >>> embed = LocalEmbedding(8, 3)
        >>> embed(torch.rand(2, 8, 5, 5)).shape, embed(torch.rand(2, 25, 8)).shape
        (torch.Size([2, 3, 5, 5]), torch.Size([2, 25, 3]))
    """

    def __init__(self, dim: int, out_dim: int, bias: bool = False) -> None:
        super().__init__(dim, out_dim, bias=bias)

    def reset_parameters(self) -> None:
        """Start from Glorot-uniform weights and no bias."""
        nn.init.xavier_uniform_(self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D H W"]:
        """Embed each feature; four axes are a map, fewer have their channels last."""
        if x.ndim == 4:
            return conv2d(x, self.weight[:, :, None, None], self.bias)
        return linear(x, self.weight, self.bias)

    def slices(self, x: Float[Tensor, "B G C"]) -> Float[Tensor, "B D"]:
        """Embed G vectors an image, each for its own slice of the D outputs alone.

        A weighted sum of embedded tokens is the embedding of their weighted sum, so whoever pools first embeds G
        vectors an image instead of all tokens.
        """
        weight = self.weight.unflatten(0, (x.shape[1], -1))
        return torch.einsum("bgc,gdc->bgd", x, weight).flatten(1) + (0.0 if self.bias is None else self.bias)


class EmbedThenPool(PoolingLayer):
    """Embed every local feature, then pool the embedded ones."""

    embedding = "inside"

    def __init__(self, dim: int, layer: PoolingLayer) -> None:
        super().__init__(dim, layer.out_dim)
        self.embed = LocalEmbedding(dim, layer.dim)
        self.layer = layer

    def pool(self, x: Float[Tensor, "B C H W"], mask: Bool[Tensor, "B H W"] | None = None) -> Pooled:
        """Embed, then pool; weights and attributes are those of the layer."""
        as_tokens(x, self.dim)  # refuses wrong features in words, where the convolution would do it in numbers
        return self.layer.pool(self.embed(without_padding(x, as_token_mask(mask, x))), mask)


class PoolThenEmbed(PoolingLayer):
    """Pool the backbone's own features, then embed the vector; without ``out_dim`` it stays as it is."""

    embedding = "inside"

    def __init__(self, layer: PoolingLayer, out_dim: int | None) -> None:
        super().__init__(layer.dim, out_dim or layer.out_dim)
        self.layer = layer
        self.takes_class_token = layer.takes_class_token
        self.embed = nn.Identity() if out_dim is None else LocalEmbedding(layer.out_dim, out_dim)

    def pool(
        self,
        x: Float[Tensor, "B C H W"],
        mask: Bool[Tensor, "B H W"] | None = None,
        class_token: Float[Tensor, "B C"] | None = None,
    ) -> Pooled:
        """Pool, then embed; weights and attributes are those of the layer."""
        pooled = self.layer.pool(x, mask, *([class_token] if self.takes_class_token else []))
        return pooled._replace(pooled=self.embed(pooled.pooled))


class GroupsThenEmbed(PoolThenEmbed):
    """Pool the backbone's own features by the groups of GSP, and embed the vector of a group for its slice alone.

    Values are those of groups that pool embedded features; prototypes and keys see the backbone's own.
    """

    def __init__(self, layer: PoolingLayer, out_dim: int) -> None:
        super().__init__(layer, out_dim)
        groups = cast("GSP", layer).groups
        if out_dim % groups:
            raise ValueError(f"groups divide the {out_dim} outputs of the embedding, got {groups}")

    def pool(
        self,
        x: Float[Tensor, "B C H W"],
        mask: Bool[Tensor, "B H W"] | None = None,
        class_token: Float[Tensor, "B C"] | None = None,
    ) -> Pooled:
        """Pool by every group, then embed; weights are means over the groups."""
        layer, embed = cast("GSP", self.layer), cast("LocalEmbedding", self.embed)
        if layer.warm_start is not None and layer.warm_start.collecting:
            return super().pool(x, mask)
        pooled, weights, attributes = layer.pool_groups(*real_tokens(x, mask, self.dim))
        return Pooled(embed.slices(pooled).to(x.dtype), weights.mean(1), attributes)
