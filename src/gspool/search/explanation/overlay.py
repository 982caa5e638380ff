"""Draw maps of tokens over their image, as arrays of bytes."""

from __future__ import annotations

import colorsys
from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jaxtyping import Float, UInt8
    from torch import Tensor

    from gspool.search.explanation.image import Explanation

# The golden ratio of the circle: neighbours in number are far apart in hue, however many colours there are.
GOLDEN_TURN = 0.6180339887498949
# Hues come near again after 8, 13, 21 turns; six tones of lightness and saturation tell those apart.
TONES = ((0.50, 0.90), (0.30, 0.85), (0.74, 0.90), (0.45, 0.45), (0.60, 0.60), (0.40, 1.00))
# The share of the picture that shows through at the largest weight.
SEEN_THROUGH = 0.3


def prototype_colour(prototype: int) -> tuple[int, int, int]:
    """Return the colour of a prototype, the same in every picture.

    Example:
        >>> prototype_colour(3) == prototype_colour(3) != prototype_colour(4)
        True
    """
    lightness, saturation = TONES[prototype % len(TONES)]
    red, green, blue = colorsys.hls_to_rgb((prototype * GOLDEN_TURN) % 1.0, lightness, saturation)
    return round(255 * red), round(255 * green), round(255 * blue)


def css_colour(prototype: int) -> str:
    """Return the colour of a prototype in CSS notation.

    Example:
        >>> css_colour(0)
        '#f20d0d'
    """
    return "#{:02x}{:02x}{:02x}".format(*prototype_colour(prototype))


def weights_over(image: UInt8[Tensor, "3 H W"], weights: Float[Tensor, "h w"]) -> UInt8[np.ndarray, "H W 3"]:
    """Draw weights over an image as a heat map: black is no weight, bright the largest.

    Example:
        >>> image = torch.full((3, 4, 4), 200, dtype=torch.uint8)
        >>> dark, bright = weights_over(image, torch.tensor([[0.0, 1.0]]))[0, [0, 3], 0].tolist()
        >>> dark < bright
        True
    """
    from matplotlib import colormaps

    heat = 255 * colormaps["inferno"](_stretched(_relative(weights), image.shape[1:]))[..., :3]
    return _mixed(_as_grey(image), heat, np.array(1 - SEEN_THROUGH))


def owners_over(explanation: Explanation, only: Sequence[int] | None = None) -> UInt8[np.ndarray, "H W 3"]:
    """Colour every place by the prototype that owns it, the stronger the larger its weight (Fig. 4).

    Args:
        explanation: of a model with prototypes.
        only: colour the places of these prototypes only, for example those that two images share.

    Raises:
        ValueError: if the explanation has no owners.
    """
    if explanation.owners is None or explanation.plan is None:
        raise ValueError("this explanation has no prototypes: its pooling layer must be gsp or built on it")
    count = explanation.plan.shape[0]
    palette = torch.tensor([prototype_colour(prototype) for prototype in range(count)], dtype=torch.float64)
    # The mass that the prototypes take, which is the weight except for the background role.
    strength = _relative(explanation.plan.sum(0))
    if only is not None:
        strength = strength * torch.isin(explanation.owners, torch.as_tensor(list(only), dtype=torch.int64))
    size = explanation.image.shape[1:]
    cover = (1 - SEEN_THROUGH) * _stretched(strength, size)[..., None]
    colour = np.stack([_stretched(palette[explanation.owners, channel], size) for channel in range(3)], axis=-1)
    return _mixed(_as_grey(explanation.image), colour, cover)


def _relative(weights: Float[Tensor, "h w"]) -> Float[Tensor, "h w"]:
    """Scale by the largest value; zeros stay zeros."""
    wide = weights.double()
    return wide / wide.max().clamp_min(torch.finfo(torch.float64).tiny)


def _stretched(values: Float[Tensor, "h w"], size: Sequence[int]) -> Float[np.ndarray, "H W"]:
    """Return for every pixel the value of its token, without smoothing, which would show more than there is."""
    rows = torch.arange(size[0]) * values.shape[0] // size[0]
    columns = torch.arange(size[1]) * values.shape[1] // size[1]
    return values.double()[rows][:, columns].numpy()


def _as_grey(image: UInt8[Tensor, "3 H W"]) -> Float[np.ndarray, "H W 1"]:
    """Remove the colour of the image, so that the colours drawn over it can be read."""
    return image.permute(1, 2, 0).cpu().numpy().mean(axis=-1, keepdims=True, dtype=np.float64)


def _mixed(
    below: Float[np.ndarray, "H W 1"], above: Float[np.ndarray, "H W 3"], cover: Float[np.ndarray, "H W 1"]
) -> UInt8[np.ndarray, "H W 3"]:
    return ((1 - cover) * below + cover * above).round().clip(0, 255).astype(np.uint8)
