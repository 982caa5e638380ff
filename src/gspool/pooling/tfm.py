"""TFM: a class token reads the others through transformer encoder layers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal, get_args

import torch
from torch import nn

from gspool.functional.results import Pooled
from gspool.pooling.layer import PoolingLayer, real_tokens

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from torch import Tensor

Position = Literal["none", "sinusoidal"]


class TFM(PoolingLayer):
    """A learned class token joins the tokens, passes the encoder layers with them, and is the vector.

    The encoder of the vision transformer (Dosovitskiy et al., ICLR 2021): layer norm first, GELU, a hidden layer four
    times as wide, a layer norm at the end. The paper compares 1, 2, 4 and 8 layers (Supp. 1.3) and says no more, so
    the width is that of the embedded features.

    Maps come in any size, so positions are not learned. ``none``, the default, pools a set: the order of the tokens
    does not matter. ``sinusoidal`` adds sines and cosines of the row to one half of the channels and of the column to
    the other; it needs a map.

    Args:
        dim: number of feature channels.
        layers: number of encoder layers.
        heads: attention heads, a divisor of ``dim``; None takes the greatest common divisor of ``dim`` and 8.
        mlp_ratio: width of the hidden layer over ``dim``.
        dropout: dropout probability inside the layers while training.
        position: ``none`` or ``sinusoidal``.

    Raises:
        ValueError: if an option is out of range, or, when called, if the features do not fit ``dim`` or have no plane
            where positions need one.

    Example:
        >>> TFM(64, layers=2)(torch.randn(2, 64, 7, 7)).shape
        torch.Size([2, 64])
    """

    embedding = "before"

    def __init__(
        self,
        dim: int,
        layers: int = 1,
        heads: int | None = None,
        mlp_ratio: float = 4.0,
        dropout: float = 0.0,
        position: Position = "none",
    ) -> None:
        super().__init__(dim)
        if not isinstance(layers, int) or layers < 1:
            raise ValueError(f"layers is the number of encoder layers and must be a positive integer, got {layers!r}")
        heads = math.gcd(dim, 8) if heads is None else heads
        if not isinstance(heads, int) or heads < 1 or dim % heads:
            raise ValueError(f"heads share the {dim} channels equally and must divide them, got {heads!r}")
        if not mlp_ratio * dim >= 1:
            raise ValueError(f"mlp_ratio must leave at least one hidden unit for {dim} channels, got {mlp_ratio!r}")
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout is a probability and must lie in [0, 1), got {dropout!r}")
        if position not in get_args(Position):
            raise ValueError(f"position must be one of {get_args(Position)}, got {position!r}")
        if position == "sinusoidal" and dim % 4:
            raise ValueError(f"sinusoidal positions take channels by fours (row, column; sine, cosine), got dim {dim}")
        self.position = position
        self.class_token = nn.Parameter(nn.init.trunc_normal_(torch.empty(1, 1, dim), std=0.02))
        self.encoder = nn.ModuleList(
            nn.TransformerEncoderLayer(
                dim, heads, int(mlp_ratio * dim), dropout, activation="gelu", batch_first=True, norm_first=True
            )
            for _ in range(layers)
        )
        self.norm = nn.LayerNorm(dim)

    def pool(self, x: Float[Tensor, "B C H W"], mask: Bool[Tensor, "B H W"] | None = None) -> Pooled:
        """Let the class token and the tokens attend to each other; padded tokens are not attended to."""
        tokens, valid = real_tokens(x, mask, self.dim)
        if valid is not None:
            # The class token is always there, and always real.
            valid = nn.functional.pad(valid, (1, 0), value=True)
        if self.position == "sinusoidal":
            if x.ndim != 4:
                raise ValueError(
                    f"sinusoidal positions need rows and columns: give a map [B, C, H, W], got {tuple(x.shape)}, "
                    'or make the layer with position="none"'
                )
            tokens = tokens + sinusoidal_positions(x.shape[2], x.shape[3], self.dim, tokens)
        class_token = self.class_token.expand(tokens.shape[0], -1, -1)
        sequence = torch.cat((class_token, tokens.to(class_token.dtype)), 1)
        for layer in self.encoder:
            sequence = layer(sequence, src_key_padding_mask=None if valid is None else ~valid)
        return Pooled(self.norm(sequence[:, 0]).to(x.dtype))


def sinusoidal_positions(height: int, width: int, dim: int, like: Tensor) -> Float[Tensor, "N dim"]:
    """Sines and cosines of the row, then of the column, at wavelengths from 2 pi to 10,000 times that."""
    quarter = dim // 4
    frequencies = 10_000.0 ** (-torch.arange(quarter, device=like.device) / max(quarter - 1, 1))
    rows = torch.arange(height, device=like.device)[:, None] * frequencies
    columns = torch.arange(width, device=like.device)[:, None] * frequencies
    of_row = torch.cat((rows.sin(), rows.cos()), 1)[:, None].expand(-1, width, -1)
    of_column = torch.cat((columns.sin(), columns.cos()), 1)[None].expand(height, -1, -1)
    return torch.cat((of_row, of_column), 2).flatten(0, 1).to(like.dtype)
