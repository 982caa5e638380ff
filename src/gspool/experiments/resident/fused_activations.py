"""Shift, shortcut and ReLU done by the convolution itself: one pass over a map where there were three.

PyTorch's convolution adds its bias in a pass of its own. cuDNN has a convolution that adds the bias and another map and
applies ReLU before it writes; PyTorch offers it without a gradient, which is given here. On the way back, the gradients
of the two ways through a block are added and stopped in one pass too (`gspool.experiments.resident.fork`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import conv2d, relu

from gspool.experiments.resident.folded_norms import FoldedConvolution, computed_in
from gspool.experiments.resident.fork import Fork
from gspool.models.keras_resnet import STAGES, KerasBottleneck, KerasResNet50

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor, nn

ONE = (1, 1)
NO_PADDING = (0, 0)


def fuse_activations(network: nn.Module) -> int:
    """Let the convolutions of every folded bottleneck of a Keras ResNet apply its ReLUs; gives how many blocks it is.

    Within a `KerasResNet50`, a block knows that its input comes from a ReLU and that only the next block reads its
    output. It then stops the gradient for the block before: from there on, only the whole network may be called.

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
    fused = [FusedBlock(part) for part in network.modules() if isinstance(part, KerasBottleneck) and _is_folded(part)]
    for each in fused:
        each.block.forward = each  # type: ignore[method-assign,assignment]
    for part in network.modules():
        if isinstance(part, KerasResNet50):
            _tell_of_neighbours([block.forward for name, *_ in STAGES for block in part.get_submodule(name).children()])
    return len(fused)


def _is_folded(block: KerasBottleneck) -> bool:
    convolutions = [block.conv1, block.conv2, block.conv3, *list(block.downsample.children())[:1]]
    return all(isinstance(each.forward, FoldedConvolution) for each in convolutions)


def _tell_of_neighbours(blocks: list[Any]) -> None:
    for fused, reader in zip(blocks, [*blocks[1:], None], strict=True):
        if isinstance(fused, FusedBlock):
            fused.reads_activations = True
            fused.read_by_another = isinstance(reader, FusedBlock)


class FusedBlock:
    """The forward of a bottleneck whose convolutions apply its ReLUs.

    Attributes:
        reads_activations: whether its input comes from a ReLU, so that it can stop the gradient for it.
        read_by_another: whether only such a block reads its output, so that the gradient that comes in is stopped.
    """

    def __init__(self, block: KerasBottleneck) -> None:
        self.block = block
        self.reads_activations = self.read_by_another = False

    def __call__(self, maps: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D h w"]:
        """Add what the block has learned to what came in."""
        block, dtype = self.block, computed_in(maps)
        # Both ways begin with a 1x1 of one stride: the pixels it reads are picked once, and laid side by side.
        inner, outer = Fork.apply(maps.to(dtype), block.conv1.stride[0], self.reads_activations)
        weight, shift = _folded(block.conv1, dtype)
        inner = ConvolutionReLU.apply(inner, weight, shift, None, ONE, NO_PADDING, False)
        weight, shift = _folded(block.conv2, dtype)
        inner = ConvolutionReLU.apply(inner, weight, shift, None, ONE, block.conv2.padding, False)
        weight, shift = _folded(block.conv3, dtype)
        for projection in list(block.downsample.children())[:1]:
            projected, projected_shift = _folded(projection, dtype)
            # Both are added to the same map: their sum is added with the shift of the third convolution.
            outer, shift = conv2d(outer, projected), shift + projected_shift
        out: Tensor = ConvolutionReLU.apply(inner, weight, shift, outer, ONE, NO_PADDING, self.read_by_another)
        return out


def _folded(convolution: Any, dtype: torch.dtype) -> tuple[Float[Tensor, "D C k k"], Float[Tensor, D]]:
    folded: FoldedConvolution = convolution.forward
    return folded.weight_and_shift(dtype)


class ConvolutionReLU(torch.autograd.Function):
    """``relu(conv(maps) + shift + shortcut)``, where ``shift`` stands still.

    ``stopped`` promises that the gradient that comes in is zero already where ReLU stops it.
    """

    @staticmethod
    def forward(
        context: Any,
        maps: Float[Tensor, "B C H W"],
        weight: Float[Tensor, "D C k k"],
        shift: Float[Tensor, D],
        shortcut: Float[Tensor, "B D h w"] | None,
        stride: tuple[int, int],
        padding: tuple[int, int],
        stopped: bool,
    ) -> Float[Tensor, "B D h w"]:
        """Compute by cuDNN on a GPU, by parts elsewhere."""
        if not maps.is_cuda:
            out = conv2d(maps, weight, shift, stride, padding)
            out = relu(out if shortcut is None else out + shortcut)
        elif shortcut is None:
            out = torch.cudnn_convolution_relu(maps, weight, shift, stride, padding, ONE, 1)
        else:
            out = torch.cudnn_convolution_add_relu(maps, weight, shortcut, 1.0, shift, stride, padding, ONE, 1)
        context.save_for_backward(maps, weight, *([] if stopped else [out]))
        context.stride, context.padding, context.has_shortcut = stride, padding, shortcut is not None
        return out

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Stop the gradient where ReLU did, and pass it on to maps, weight and shortcut."""
        maps, weight, *out = context.saved_tensors
        passed = torch.ops.aten.threshold_backward(gradients[0], out[0], 0.0) if out else gradients[0]
        wanted = [*context.needs_input_grad[:2], False]
        to_maps, to_weight, _ = torch.ops.aten.convolution_backward(
            passed, maps, weight, None, context.stride, context.padding, ONE, False, (0, 0), 1, wanted
        )
        return to_maps, to_weight, None, passed if context.has_shortcut else None, None, None, None
