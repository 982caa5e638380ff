"""The one interface of every pooling layer: features in, `Pooled` out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch
from torch import nn

from gspool.functional.checks import check_mask
from gspool.functional.results import Pooled

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from torch import Tensor

Place = Literal["before", "after", "inside"]


class PoolingLayer(nn.Module):
    """A pooling layer takes a feature map [B, C, H, W] or tokens [B, N, D] to one vector an image.

    Subclasses write `pool`; calling the module gives the vector alone. ``dim`` is the number of channels that come in,
    ``out_dim`` the length of the vector that goes out.

    ``embedding`` says where the 1x1 convolution of an embedding model belongs: ``before`` the layer, ``after`` it, or
    ``inside`` (the layer takes ``out_dim`` itself, because it needs the features both raw and embedded).
    """

    embedding: Place = "before"
    # Whether `pool` also takes ``class_token``, which only a transformer has.
    takes_class_token = False
    # Lengths of the parts of the vector, where each has a loss of its own.
    parts: tuple[int, ...] = ()

    def __init__(self, dim: int, out_dim: int | None = None) -> None:
        super().__init__()
        if not isinstance(dim, int) or dim < 1:
            raise ValueError(f"dim is the number of feature channels and must be a positive integer, got {dim!r}")
        self.dim = dim
        self.out_dim = dim if out_dim is None else out_dim

    def pool(self, x: Float[Tensor, "B C H W"], mask: Bool[Tensor, "B H W"] | None = None) -> Pooled:
        """Return the vector, the weights of the tokens and the attributes. Each layer writes its own."""
        raise NotImplementedError(f"{type(self).__name__} has no `pool` method; write one")

    def forward(self, x: Float[Tensor, "B C H W"], mask: Bool[Tensor, "B H W"] | None = None) -> Float[Tensor, "B D"]:
        """Pool to one vector an image."""
        return self.pool(x, mask).pooled

    def extra_repr(self) -> str:
        """Name the sizes in `print(model)`."""
        return f"{self.dim}" if self.dim == self.out_dim else f"{self.dim} -> {self.out_dim}"


def as_tokens(x: Float[Tensor, "B C H W"], dim: int) -> Float[Tensor, "B N C"]:
    """Return a feature map, or tokens, as [B, N, C]; a view, never a copy.

    Raises:
        ValueError: if ``x`` is neither [B, C, H, W] nor [B, N, D] with ``dim`` channels, is empty, or is not floating.
    """
    if not isinstance(x, torch.Tensor):
        raise ValueError(f"features must be a torch.Tensor [B, C, H, W] or [B, N, D], got {type(x).__name__}")
    if x.ndim not in (3, 4):
        raise ValueError(
            f"features must be a map [B, C, H, W] or tokens [B, N, D], got shape {tuple(x.shape)}; "
            "add the batch axis with x[None] if this is a single image"
        )
    channels = x.shape[1] if x.ndim == 4 else x.shape[2]
    if channels != dim:
        where = "axis 1 of a map [B, C, H, W]" if x.ndim == 4 else "the last axis of tokens [B, N, D]"
        raise ValueError(f"this layer was made for {dim} channels ({where}), got {channels} in shape {tuple(x.shape)}")
    if not x.is_floating_point():
        raise ValueError(f"features must be floating point, got {x.dtype}; convert them with x.float()")
    tokens = x.flatten(2).transpose(1, 2) if x.ndim == 4 else x
    if tokens.shape[1] == 0:
        raise ValueError(f"there is nothing to pool: features of shape {tuple(x.shape)} have no tokens")
    return tokens


def as_token_mask(mask: Bool[Tensor, "B H W"] | None, x: Float[Tensor, "B C H W"]) -> Bool[Tensor, "B N"] | None:
    """Return a mask [B, H, W] or [B, N] as [B, N]; True marks a real token.

    Raises:
        ValueError: if the mask is not boolean, does not fit the features, or leaves an image without a token.
    """
    if mask is None:
        return None
    if mask.dtype != torch.bool:
        raise ValueError(f"mask must be boolean (True = real token), got {mask.dtype}; convert it with mask.bool()")
    spatial = x.shape[2:] if x.ndim == 4 else x.shape[1:2]
    flat = (x.shape[0], spatial.numel())
    if tuple(mask.shape) not in {flat, (x.shape[0], *spatial)}:
        fits = f"{(x.shape[0], *spatial)}" + (f" or {flat}" if x.ndim == 4 else "")
        raise ValueError(f"mask must have shape {fits} for features of shape {tuple(x.shape)}, got {tuple(mask.shape)}")
    flat_mask = mask.flatten(1)
    check_mask(flat_mask, flat, x.device)
    return flat_mask


def without_padding(x: Float[Tensor, "B C H W"], mask: Bool[Tensor, "B N"] | None) -> Float[Tensor, "B C H W"]:
    """Put zeros where a map or tokens are padded: what stands there must not matter, and 0 * inf is NaN."""
    if mask is None:
        return x
    real = mask.unflatten(1, x.shape[2:]).unsqueeze(1) if x.ndim == 4 else mask.unsqueeze(2)
    return x.masked_fill(~real, 0.0)


def real_tokens(
    x: Float[Tensor, "B C H W"], mask: Bool[Tensor, "B H W"] | None, dim: int
) -> tuple[Float[Tensor, "B N C"], Bool[Tensor, "B N"] | None]:
    """Return tokens [B, N, C] with zeros in the padding, and the mask as [B, N].

    Raises:
        ValueError: as `as_tokens` and `as_token_mask`.
    """
    tokens, token_mask = as_tokens(x, dim), as_token_mask(mask, x)
    return without_padding(tokens, token_mask), token_mask


def check_plane(x: Float[Tensor, "B C H W"], needs: str) -> None:
    """Refuse tokens where a layer needs their places in the plane; ``needs`` says what for."""
    if x.ndim != 4:
        raise ValueError(
            f"{needs}: give it a map [B, C, H, W], got tokens {tuple(x.shape)}; "
            "tokens of an H x W grid become one by x.transpose(1, 2).unflatten(2, (H, W))"
        )


def check_heads(dim: int, num_heads: int) -> None:
    """Refuse a number of heads that does not divide the channels."""
    if not isinstance(num_heads, int) or num_heads < 1 or dim % num_heads:
        raise ValueError(f"num_heads must divide the {dim} channels, got {num_heads!r}; set the option num_heads")


def attention_weights(
    scores: Float[Tensor, "B Q N"], valid: Bool[Tensor, "B N"] | None = None
) -> Float[Tensor, "B Q N"]:
    """Return weights that sum to 1 over the real tokens; padded ones get 0.

    Example:
        >>> attention_weights(torch.zeros(1, 1, 4), torch.tensor([[True, True, False, False]])).tolist()
        [[[0.5, 0.5, 0.0, 0.0]]]
    """
    if valid is not None:
        scores = scores.masked_fill(~valid[:, None], -torch.inf)
    return scores.softmax(2)
