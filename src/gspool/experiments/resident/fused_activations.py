"""Shift, shortcut and ReLU done by the convolution itself: one pass over a map where there were three.

PyTorch's convolution adds its bias in a pass of its own. cuDNN has a convolution that adds the bias and another map and
applies ReLU before it writes; PyTorch offers it without a gradient, which is given here.
"""

from __future__ import annotations

from types import MethodType
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import conv2d, relu

from gspool.experiments.resident.folded_norms import FoldedConvolution, computed_in
from gspool.models.keras_resnet import KerasBottleneck

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor, nn

ONE = (1, 1)


def fuse_activations(network: nn.Module) -> int:
    """Let the convolutions of every folded bottleneck of a Keras ResNet apply its ReLUs; gives how many blocks it is.

    Example:
        >>> from gspool.experiments.resident import fold_frozen_norms
        >>> block = KerasBottleneck(8, 2, stride=1, project=False).eval()
        >>> maps = torch.randn(2, 8, 5, 5)
        >>> before = block(maps)
        >>> fold_frozen_norms(block), fuse_activations(block)
        (3, 1)
        >>> bool((block(maps) - before).abs().max() < 1e-5)
        True
    """
    count = 0
    for block in network.modules():
        if not isinstance(block, KerasBottleneck):
            continue
        if all(isinstance(each.forward, FoldedConvolution) for each in (block.conv1, block.conv2, block.conv3)):
            block.forward = MethodType(_fused_block, block)  # type: ignore[method-assign]
            count += 1
    return count


def _fused_block(block: KerasBottleneck, maps: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D h w"]:
    narrow = _activated(block.conv2, _activated(block.conv1, maps))
    return _activated(block.conv3, narrow, block.downsample(maps))


def _activated(convolution: nn.Conv2d, maps: Tensor, shortcut: Tensor | None = None) -> Tensor:
    dtype = computed_in(maps)
    weight, shift = convolution.forward.weight_and_shift(dtype)  # type: ignore[attr-defined]
    added = None if shortcut is None else shortcut.to(dtype)
    out: Tensor = ConvolutionReLU.apply(maps.to(dtype), weight, shift, added, convolution.stride, convolution.padding)
    return out


class ConvolutionReLU(torch.autograd.Function):
    """``relu(conv(maps) + shift + shortcut)``, where ``shift`` stands still."""

    @staticmethod
    def forward(
        context: Any,
        maps: Float[Tensor, "B C H W"],
        weight: Float[Tensor, "D C k k"],
        shift: Float[Tensor, D],
        shortcut: Float[Tensor, "B D h w"] | None,
        stride: tuple[int, int],
        padding: tuple[int, int],
    ) -> Float[Tensor, "B D h w"]:
        """Compute by cuDNN on a GPU, by parts elsewhere."""
        if not maps.is_cuda:
            out = conv2d(maps, weight, shift, stride, padding)
            out = relu(out if shortcut is None else out + shortcut)
        elif shortcut is None:
            out = torch.cudnn_convolution_relu(maps, weight, shift, stride, padding, ONE, 1)
        else:
            out = torch.cudnn_convolution_add_relu(maps, weight, shortcut, 1.0, shift, stride, padding, ONE, 1)
        context.save_for_backward(maps, weight, out)
        context.stride, context.padding, context.has_shortcut = stride, padding, shortcut is not None
        return out

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Stop the gradient where ReLU did, and pass it on to maps, weight and shortcut."""
        maps, weight, out = context.saved_tensors
        passed = torch.ops.aten.threshold_backward(gradients[0], out, 0.0)
        wanted = [*context.needs_input_grad[:2], False]
        to_maps, to_weight, _ = torch.ops.aten.convolution_backward(
            passed, maps, weight, None, context.stride, context.padding, ONE, False, (0, 0), 1, wanted
        )
        return to_maps, to_weight, None, passed if context.has_shortcut else None, None, None
