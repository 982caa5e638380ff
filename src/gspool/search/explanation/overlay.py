"""Draw maps of tokens over their image, as arrays of bytes."""

from __future__ import annotations

import colorsys
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch.nn import functional as F

from gspool.evaluation.entropy import FLAT_ENTROPY, relative_entropy

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from jaxtyping import Float, UInt8
    from torch import Tensor

    from gspool.search.explanation import Explanation, Shared

# The golden ratio of the circle: neighbours in number are far apart in hue, however many colours there are.
GOLDEN_TURN = 0.6180339887498949
# Hues come near again after 8, 13, 21 turns; six tones of lightness and saturation tell those apart.
TONES = ((0.50, 0.90), (0.30, 0.85), (0.74, 0.90), (0.45, 0.45), (0.60, 0.60), (0.40, 1.00))
# The share of a heat map or a prototype's colour over the picture, and that of a map whose weights are nearly uniform.
COVER, FADED_COVER = 0.7, 0.15
COLOURS = "inferno"
# A title and the pixels [H, W, 3] below it.
Panel = tuple[str, Any]


def prototype_colour(prototype: int) -> tuple[int, int, int]:
    """Return the colour of a prototype, the same in every picture."""
    lightness, saturation = TONES[prototype % len(TONES)]
    red, green, blue = colorsys.hls_to_rgb((prototype * GOLDEN_TURN) % 1.0, lightness, saturation)
    return round(255 * red), round(255 * green), round(255 * blue)


def css_colour(prototype: int) -> str:
    """Return the colour of a prototype in CSS notation."""
    return "#{:02x}{:02x}{:02x}".format(*prototype_colour(prototype))


def bar_colour(explanation: Explanation, prototype: int) -> str:
    """Return the colour of a prototype in a histogram: grey if it has less than its even share in this image."""
    return css_colour(prototype) if prototype in explanation.prominent else "#bbbbbb"


def common_scale(maps: Iterable[Float[Tensor, "h w"]]) -> float:
    """Return the largest value of several maps, each in units of its own average: the scale of a figure of them."""
    return max(float(_relative(each).max()) for each in maps)


def weights_over(
    image: UInt8[Tensor, "3 H W"], weights: Float[Tensor, "h w"], scale: float | None = None, grid: bool = False
) -> UInt8[np.ndarray, "H W 3"]:
    """Draw weights over an image as a heat map: black is no weight, bright the largest; faded if nearly uniform.

    Args:
        image: the image as the model sees it.
        weights: of the tokens, sum 1.
        scale: the weight that is brightest, as a multiple of the average weight; the largest of this map unless given.
            Maps of one figure share the `common_scale` of all.
        grid: draw the cells of the tokens instead of interpolating between their centres.

    Example:
        >>> image = torch.full((3, 4, 4), 200, dtype=torch.uint8)
        >>> dark, bright = weights_over(image, torch.tensor([[0.0, 1.0]]))[0, [0, 3], 0].tolist()
        >>> dark < bright
        True
    """
    from matplotlib import colormaps

    strength = _resized(_relative(weights)[None], image, grid)[0] / (scale or common_scale([weights]))
    heat = 255 * colormaps[COLOURS](strength.clamp(0, 1).numpy())[..., :3]
    return _mixed(image, heat, np.array(_cover(weights)))


def owners_over(
    explanation: Explanation, only: Sequence[int] | None = None, scale: float | None = None, grid: bool = False
) -> UInt8[np.ndarray, "H W 3"]:
    """Colour every place by the prototype that owns it, the stronger the larger its weight (Fig. 4).

    Prototypes that have less than their even share of the mass, 1 / M, are not coloured. Nearly uniform weights are
    drawn faded.

    Args:
        explanation: of a model with prototypes.
        only: colour the places of these prototypes only, for example those that two images share.
        scale: see `weights_over`; of the mass that the prototypes take, which in the background role is not the weight.
        grid: draw the cells of the tokens instead of interpolating between their centres.

    Raises:
        ValueError: if the explanation has no owners.
    """
    if explanation.owners is None or explanation.plan is None:
        raise ValueError("this explanation has no prototypes: its pooling layer must be gsp or built on it")
    taken = explanation.plan.sum(0)
    shown = [number for number in explanation.prominent if only is None or number in only]
    # A prototype that owns no token owns nothing between tokens either, or so little that it is not worth the memory.
    owning = explanation.owners.unique()
    palette = torch.tensor([prototype_colour(number) for number in owning.tolist()], dtype=torch.float64)
    owner = _resized(explanation.plan[owning].double(), explanation.image, grid).argmax(0)
    strength = _resized(_relative(taken)[None], explanation.image, grid)[0] / (scale or common_scale([taken]))
    coloured = torch.isin(owning, torch.tensor(shown, dtype=torch.int64))[owner]
    cover = _cover(explanation.weights) * strength.clamp(0, 1) * coloured
    return _mixed(explanation.image, palette[owner].numpy(), cover[..., None].numpy())


class Scales(NamedTuple):
    """The common scales of a figure: of the weights, and of the mass that prototypes take, if there are any."""

    weights: float
    taken: float | None

    @classmethod
    def of(cls, explanations: Sequence[Explanation]) -> Scales:
        """Return the scales on which several explanations are drawn together."""
        plans = [each.plan.sum(0) for each in explanations if each.plan is not None]
        return cls(common_scale(each.weights for each in explanations), common_scale(plans) if plans else None)


def panels(explanation: Explanation, scales: Scales, grid: bool = False) -> list[Panel]:
    """Return the titled pictures of an explanation: the image, its weights and, where it has them, its prototypes."""
    faded = ", faded" if explanation.is_flat else ""
    share = "" if explanation.patch_share == 1 else f" ({explanation.patch_share:.0%} of the embedding)"
    drawn: list[Panel] = [
        ("as the model sees it", explanation.image.permute(1, 2, 0).numpy()),
        (
            f"weights{share}, entropy {explanation.entropy:.2f}{faded}",
            weights_over(explanation.image, explanation.weights, scales.weights, grid),
        ),
    ]
    if explanation.owners is not None:
        drawn.append(("prototypes", owners_over(explanation, scale=scales.taken, grid=grid)))
    return drawn


def shared_panels(
    names: Sequence[str], explanations: Sequence[Explanation], shared: Shared, scales: Scales, grid: bool
) -> list[Panel]:
    """Return the titled pictures of what two images share, in each of them."""
    return [
        (f"shared, in {name}", owners_over(each, shared.prototypes.tolist(), scales.taken, grid))
        for name, each in zip(names, explanations, strict=True)
        if each.owners is not None
    ]


def _relative(values: Float[Tensor, "h w"]) -> Float[Tensor, "h w"]:
    """Scale values to an average of 1; zeros stay zeros."""
    wide = values.double()
    return wide / wide.mean().clamp_min(torch.finfo(torch.float64).tiny)


def _cover(weights: Float[Tensor, "h w"]) -> float:
    return COVER if relative_entropy(weights.double().flatten()[None]).item() < FLAT_ENTROPY else FADED_COVER


def _resized(maps: Float[Tensor, "K h w"], image: UInt8[Tensor, "3 H W"], grid: bool) -> Float[Tensor, "K H W"]:
    """Return maps of tokens at the size of their image.

    Linear interpolation passes through the value of every token and never leaves the range of its neighbours, so that
    nothing is drawn that no token has; a cubic one would draw rings around a peak.
    """
    size = [*image.shape[1:]]
    if grid:
        return F.interpolate(maps[None], size, mode="nearest")[0]
    return F.interpolate(maps[None], size, mode="bilinear", align_corners=False)[0]


def _mixed(
    image: UInt8[Tensor, "3 H W"], above: Float[np.ndarray, "H W 3"], cover: Float[np.ndarray, "H W 1"]
) -> UInt8[np.ndarray, "H W 3"]:
    """Blend colours over the image without its own colours, so that the drawn ones can be read."""
    grey = image.permute(1, 2, 0).cpu().numpy().mean(axis=-1, keepdims=True, dtype=np.float64)
    return ((1 - cover) * grey + cover * above).round().clip(0, 255).astype(np.uint8)
