"""The sum of two gradients where a map is positive, and that sum spread over every second pixel of a larger map.

A kernel treats its numbers in float32. `gspool.experiments.resident.fork` has the plain version.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

BLOCK = 1024
PIXELS = 16


@triton.jit
def masked_sum(first, second, maps, place, real):
    """Add two gradients where the map is not zero or below; where it is not a number the sum shows, as in PyTorch."""
    one = tl.load(first + place, mask=real, other=0.0).to(tl.float32)
    other = tl.load(second + place, mask=real, other=0.0).to(tl.float32)
    value = tl.load(maps + place, mask=real, other=0.0).to(tl.float32)
    return tl.where(value <= 0.0, 0.0, one + other)


@triton.jit
def flat_kernel(first, second, maps, out, count, BLOCK: tl.constexpr):
    """Go through four tensors of one layout in the order of their memory."""
    # A place is an address: int32 wraps silently past 2**31 elements.
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    real = place < count
    total = masked_sum(first, second, maps, place, real)
    tl.store(out + place, total.to(out.dtype.element_ty), mask=real)


@triton.jit
def spread_kernel(
    first, second, maps, out, H, W, h, w, C,
    STEP: tl.constexpr, PIXELS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """Write a part of one row of the larger map: sums at every STEP-th pixel of every STEP-th row, zeros elsewhere."""
    line = tl.program_id(0)
    image = line // H
    # A vector of one number: masks of a number and of a vector do not mix everywhere.
    y = line % H + tl.zeros([PIXELS], dtype=tl.int32)
    x = tl.program_id(1) * PIXELS + tl.arange(0, PIXELS)
    channel = tl.program_id(2) * CHANNELS + tl.arange(0, CHANNELS)
    real = (x < W)[:, None] & (channel < C)[None, :]
    picked = real & ((x % STEP == 0) & (y % STEP == 0))[:, None]
    small = ((image * h + y // STEP) * w + x // STEP).to(tl.int64) * C
    large = (line * W + x).to(tl.int64) * C
    total = masked_sum(first, second, maps, small[:, None] + channel[None, :], picked)
    tl.store(out + large[:, None] + channel[None, :], total.to(out.dtype.element_ty), mask=real)


def flat_masked_sum(
    first: Float[Tensor, "B C H W"], second: Float[Tensor, "B C H W"], maps: Float[Tensor, "B C H W"]
) -> Float[Tensor, "B C H W"]:
    """Give ``where(maps > 0, first + second, 0)`` of tensors without gaps that are laid out alike."""
    out = torch.empty_like(maps)
    if count := maps.numel():
        grid = (triton.cdiv(count, BLOCK),)
        with torch.cuda.device_of(maps):
            flat_kernel[grid](first, second, maps, out, count, BLOCK=BLOCK, num_warps=4, enable_fp_fusion=True)
    return out


def spread_masked_sum(
    first: Float[Tensor, "B C h w"],
    second: Float[Tensor, "B C h w"],
    maps: Float[Tensor, "B C h w"],
    sides: tuple[int, int],
    step: int,
) -> Float[Tensor, "B C H W"]:
    """Give that sum at every ``step``-th pixel of a map of these sides; all channels-last and without gaps."""
    (B, C, h, w), (H, W) = maps.shape, sides
    out = torch.empty((B, C, H, W), dtype=maps.dtype, device=maps.device, memory_format=torch.channels_last)
    if out.numel():
        channels = min(64, triton.next_power_of_2(C))
        grid = (B * H, triton.cdiv(W, PIXELS), triton.cdiv(C, channels))
        with torch.cuda.device_of(maps):
            spread_kernel[grid](
                first, second, maps, out, H, W, h, w, C,
                STEP=step, PIXELS=PIXELS, CHANNELS=channels, num_warps=4, enable_fp_fusion=True,
            )  # fmt: skip
    return out
