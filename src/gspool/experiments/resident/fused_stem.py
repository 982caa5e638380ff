"""The first layers of a Keras ResNet in fewer passes: a convolution that tensor cores like, and a lean pooling.

A 7x7 convolution of 3 channels with stride 2 reads 2 x 2 pixels at a time: with those laid out as channels, it is a 4x4
convolution with stride 1. It has 12 channels, filled up to 16 with zeros because tensor cores take 8 at a time.
"""

from __future__ import annotations

from types import MethodType
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from gspool.experiments.resident.folded_norms import FoldedConvolution, computed_in
from gspool.experiments.resident.fork import runs_kernels
from gspool.experiments.resident.fused_activations import NO_PADDING, ONE, ConvolutionReLU
from gspool.models.keras_resnet import STAGES, KerasResNet50

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor, nn

# Blocks of 2 x 2 zeros before the image, and after it: a window reaches from two blocks before its own to one behind.
BEFORE, BEHIND = 2, 1
FILL_UP = (0, 0, 0, 0, 0, 4)


def fuse_stem(network: nn.Module) -> bool:
    """Replace what a folded `KerasResNet50` does before its first block; says whether the network was one.

    The network computes and learns the same as before, by the same parameters.

    Example:
        >>> from gspool.experiments.resident import fold_frozen_norms
        >>> network = KerasResNet50().eval()
        >>> fuse_stem(network)
        False
        >>> fold_frozen_norms(network)
        53
        >>> images = torch.randn(1, 3, 33, 33)
        >>> with torch.no_grad():
        ...     before = network(images)
        ...     fuse_stem(network), bool((network(images) - before).abs().max() < 1e-3 * before.max())
        (True, True)
    """
    if not isinstance(network, KerasResNet50) or not isinstance(network.conv1.forward, FoldedConvolution):
        return False
    network.forward = MethodType(_forward, network)  # type: ignore[method-assign]
    return True


def _forward(network: KerasResNet50, pixels: Float[Tensor, "B 3 H W"]) -> Float[Tensor, "B 2048 h w"]:
    folded: Any = network.conv1.forward
    maps = stem(pixels, *folded.weight_and_shift(computed_in(pixels)))
    for name, *_ in STAGES:
        maps = network.get_submodule(name)(maps)
    return maps


def stem(
    pixels: Float[Tensor, "B 3 H W"], weight: Float[Tensor, "D 3 7 7"], shift: Float[Tensor, D]
) -> Float[Tensor, "B D h w"]:
    """Convolve with stride 2 and padding 3, apply ReLU, and take maxima of 3 x 3 with stride 2 and padding 1.

    ``weight`` and ``shift`` have the precision that is computed in; ``shift`` stands still.
    """
    spread, by_blocks = spread_pixels(pixels, weight.dtype), spread_weight(weight)
    lean = runs_kernels(spread, weight.dtype)
    # The lean pooling passes no gradient to a maximum of zero, so that the ReLU before it has nothing to stop.
    maps: Tensor = ConvolutionReLU.apply(spread, by_blocks, shift, None, ONE, NO_PADDING, lean)
    if not lean:
        return F.max_pool2d(maps, 3, stride=2, padding=1)
    pooled: Tensor = PoolActivations.apply(maps)
    return pooled


def spread_pixels(pixels: Float[Tensor, "B 3 H W"], dtype: torch.dtype) -> Float[Tensor, "B 16 h w"]:
    """Lay 2 x 2 pixels out as channels, in another precision, with the zeros around that the convolution needs."""
    height, width = ((side + 1) // 2 + BEFORE + BEHIND for side in pixels.shape[2:])
    if runs_kernels(pixels, dtype) and not pixels.requires_grad:
        from gspool.experiments.resident.kernels import stem as kernels

        return kernels.spread_pixels(pixels, (height, width), BEFORE, dtype)
    H, W = pixels.shape[2:]
    around = (2 * BEFORE, 2 * (width - BEFORE) - W, 2 * BEFORE, 2 * (height - BEFORE) - H)
    blocks = F.pixel_unshuffle(F.pad(pixels.to(dtype), around), 2)
    return F.pad(blocks, FILL_UP).contiguous(memory_format=torch.channels_last)


def spread_weight(weight: Float[Tensor, "D 3 7 7"]) -> Float[Tensor, "D 16 4 4"]:
    """Lay a weight out in the same way; it begins with zeros, for the pixel before its window that makes it even."""
    blocks = F.pixel_unshuffle(F.pad(weight, (1, 0, 1, 0)), 2)
    return F.pad(blocks, FILL_UP).contiguous(memory_format=torch.channels_last)


class PoolActivations(torch.autograd.Function):
    """``max_pool2d(maps, 3, stride=2, padding=1)`` of what a ReLU gave, on a GPU.

    The gradient goes to the first of equal maxima, as in PyTorch, and to none that is zero: there the ReLU before would
    stop it. So it is the gradient of both.
    """

    @staticmethod
    def forward(context: Any, maps: Float[Tensor, "B C H W"]) -> Float[Tensor, "B C h w"]:
        """Take maxima, and keep where they were: a byte each."""
        from gspool.experiments.resident.kernels import stem as kernels

        pooled, places = kernels.pool(maps.contiguous(memory_format=torch.channels_last))
        context.save_for_backward(places)
        context.sides = (maps.shape[2], maps.shape[3])
        return pooled

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> Tensor:
        """Bring the gradient back to where the maxima were."""
        from gspool.experiments.resident.kernels import stem as kernels

        (places,) = context.saved_tensors
        return kernels.unpool(gradients[0].contiguous(memory_format=torch.channels_last), places, context.sides)
