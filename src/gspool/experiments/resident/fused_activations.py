"""Shift, shortcut and ReLU done by the convolution itself: one pass over a map where there were three.

PyTorch's convolution adds its bias in a pass of its own. cuDNN has a convolution that adds the bias and another map and
applies ReLU before it writes; PyTorch offers it without a gradient, which is given here. On the way back, the gradients
of the two ways through a block are added and stopped, where the ReLU before the block was zero, in one pass too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import conv2d, relu

from gspool.experiments.resident.folded_norms import FoldedConvolution, computed_in
from gspool.models.keras_resnet import STAGES, KerasBottleneck, KerasResNet50

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor, nn

ONE = (1, 1)
NO_PADDING = (0, 0)
# What the kernels hold in float32 without loss.
OF_KERNELS = (torch.float32, torch.bfloat16, torch.float16)


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
    for index, fused in enumerate(blocks):
        if isinstance(fused, FusedBlock):
            fused.reads_activations = True
            fused.read_by_another = isinstance((blocks[index + 1 :] or [None])[0], FusedBlock)


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


class Fork(torch.autograd.Function):
    """Every ``step``-th pixel of a map for two readers, whose gradients are added in one pass.

    With ``stops``, the sum is zero where the map is: the gradient before the ReLU that the map comes from.
    """

    @staticmethod
    def forward(
        context: Any, maps: Float[Tensor, "B C H W"], step: int, stops: bool
    ) -> tuple[Float[Tensor, "B C h w"], Float[Tensor, "B C h w"]]:
        """Pick the pixels, if not all of them, and give them twice."""
        picked = maps
        if step > 1:
            picked = maps[:, :, ::step, ::step].contiguous(memory_format=_layout(maps))
        context.save_for_backward(*([picked] if stops else []))
        context.step, context.shape, context.layout = step, maps.shape, _layout(maps)
        return picked.view_as(picked), picked.view_as(picked)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        """Add, stop, and put the sums back among zeros where pixels were left out."""
        (first, second), maps = gradients, context.saved_tensors
        step, sides = context.step, tuple(context.shape[2:])
        if maps and _fits_a_kernel(first, second, maps[0], step):
            from gspool.experiments.resident.kernels.masked_sum import flat_masked_sum, spread_masked_sum

            if step == 1:
                return flat_masked_sum(first, second, maps[0]), None, None
            return spread_masked_sum(first, second, maps[0], sides, step), None, None
        total = first + second
        if maps:
            total = total.masked_fill(maps[0] <= 0, 0)
        if step > 1:
            whole = torch.empty(context.shape, dtype=total.dtype, device=total.device, memory_format=context.layout)
            whole.zero_()[:, :, ::step, ::step] = total
            total = whole
        return total, None, None


def _layout(maps: Tensor) -> torch.memory_format:
    channels_last = maps.is_contiguous(memory_format=torch.channels_last)
    return torch.channels_last if channels_last else torch.contiguous_format


def _fits_a_kernel(first: Tensor, second: Tensor, maps: Tensor, step: int) -> bool:
    tensors = (first, second, maps)
    alike = all(each.stride() == maps.stride() and each.dtype == maps.dtype for each in tensors)
    dense = maps.is_contiguous(memory_format=torch.channels_last) or (step == 1 and maps.is_contiguous())
    return runs_kernels(maps, maps.dtype) and alike and dense


def runs_kernels(maps: Tensor, dtype: torch.dtype) -> bool:
    """Say whether kernels treat these maps, computed in this precision: on a GPU, where float32 is enough for them."""
    return maps.is_cuda and dtype in OF_KERNELS
