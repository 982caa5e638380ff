"""Where a map has two readers: their gradients are added, and stopped where the ReLU before was zero, in one pass."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from gspool.functional.kernels.dispatch import KERNEL_DTYPES, TRITON_IS_INSTALLED

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor


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
    """Say whether kernels treat these maps: on a GPU with Triton, where float32 is enough for this precision."""
    return maps.is_cuda and TRITON_IS_INSTALLED and dtype in KERNEL_DTYPES
