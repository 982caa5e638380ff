"""Recognise a global pooling by what it did to the numbers, not by what it is called."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

import torch

if TYPE_CHECKING:
    from torch import Tensor

# "average and maximum" is the mean of both, "average beside maximum" has twice the channels.
Kind = Literal["average", "maximum", "average and maximum", "average beside maximum", "class token", "unknown"]

# Sums in another order differ by rounding; half precision rounds at every step.
RELATIVE_ERROR = {torch.float64: 1e-9, torch.float32: 2e-5, torch.float16: 1e-2, torch.bfloat16: 5e-2}


class Recognised(NamedTuple):
    """What a call did to the positions of its input, and on which axis it found the channels."""

    kind: Kind
    channels_last: bool


def recognise(taken: Tensor, given: Tensor) -> Recognised | None:
    """Tell how ``given`` came from the positions of ``taken``; None if it is not one vector an image.

    The axis of the channels is the one for which the numbers agree, so that [B, C, H, W], [B, H, W, C] and [B, N, D]
    need no hint. ``unknown`` is a vector that is neither average, nor maximum, nor their mean, nor both in a row, nor
    the first token.
    """
    if not has_positions(taken.shape) or has_positions(given.shape) or given.ndim < 2 or given.ndim > taken.ndim:
        return None
    if given.shape[0] != taken.shape[0] or not (taken.is_floating_point() and given.is_floating_point()):
        return None
    vector = given.flatten(1)
    for channels_last in (False, True):
        tokens = taken.movedim(-1, 1).flatten(2) if channels_last else taken.flatten(2)
        if vector.shape[1] not in (tokens.shape[1], 2 * tokens.shape[1]) or tokens.shape[2] < 2:
            continue
        average, maximum = tokens.mean(-1), tokens.amax(-1)
        candidates: dict[Kind, Tensor] = {
            "average": average,
            "maximum": maximum,
            "average and maximum": 0.5 * (average + maximum),
            "average beside maximum": torch.cat((average, maximum), dim=1),
        }
        if taken.ndim == 3 and channels_last:
            candidates["class token"] = tokens[..., 0]
        for kind, candidate in candidates.items():
            if close(vector, candidate):
                return Recognised(kind, channels_last)
    if given.numel() >= taken.numel():  # flattened, not pooled
        return None
    return Recognised("unknown", channels_last=taken.ndim == 3)


def has_positions(shape: tuple[int, ...] | None) -> bool:
    """Tell whether a tensor of this shape is a map or tokens with more than one position.

    >>> has_positions((2, 512, 7, 7)), has_positions((2, 512, 1, 1)), has_positions((2, 512))
    (True, False, False)
    """
    return shape is not None and len(shape) >= 3 and sum(size > 1 for size in shape[1:]) >= 2


def close(value: Tensor, expected: Tensor) -> bool:
    """Tell whether two tensors agree to rounding, measured by the largest expected number."""
    if value.shape != expected.shape:
        return False
    error = (value - expected).abs().max()
    return bool(error <= RELATIVE_ERROR.get(value.dtype, 2e-5) * expected.abs().max())
