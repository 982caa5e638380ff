"""Softmax over the real tokens, shared by the layers that attend."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from torch import Tensor


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
