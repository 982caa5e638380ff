"""The stem's passes over memory: pixels spread over channels, and maximum pooling after a ReLU with its gradient.

Maps are channels-last and without gaps. `gspool.experiments.resident.fused_stem` has the plain versions.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

if TYPE_CHECKING:
    from jaxtyping import Float, Int8
    from torch import Tensor

PIXELS = 16
# The place of a maximum that is zero: ReLU passes no gradient on to it.
NOWHERE = tl.constexpr(-1)
# The 2 x 2 pixels of 3 channels each that become one, and what tensor cores like to have instead of 12 channels.
SPREAD = tl.constexpr(12)
CHANNELS = tl.constexpr(16)


@triton.jit
def spread_kernel(
    pixels, out, stride_b, stride_c, stride_y, stride_x, H, W, h, w, BEFORE: tl.constexpr, BLOCK: tl.constexpr
):
    """Write a part of one row of the spread map: channel ``4 c + 2 dy + dx`` is pixel ``(2 y + dy, 2 x + dx)`` of c."""
    line = tl.program_id(0)
    image = (line // h).to(tl.int64)
    x = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    channel = tl.arange(0, CHANNELS)
    top = 2 * (line % h - BEFORE) + channel // 2 % 2
    left = 2 * (x - BEFORE)[:, None] + (channel % 2)[None, :]
    real = ((channel < SPREAD) & (top >= 0) & (top < H))[None, :] & (left >= 0) & (left < W) & (x < w)[:, None]
    source = image * stride_b + (channel // 4 * stride_c + top * stride_y)[None, :] + left * stride_x
    value = tl.load(pixels + source, mask=real, other=0.0)
    target = (line * w + x).to(tl.int64) * CHANNELS
    whole = (x < w)[:, None] & (channel < CHANNELS)[None, :]
    tl.store(out + target[:, None] + channel[None, :], value.to(out.dtype.element_ty), mask=whole)


@triton.jit
def pool_kernel(maps, pooled, places, H, W, h, w, C, BLOCK: tl.constexpr, WIDTH: tl.constexpr):
    """Find the maxima of a part of one row of windows, and where in its window each of them stands first."""
    line = tl.program_id(0)
    image = line // h
    # A vector of one number: masks of a number and of a vector do not mix everywhere.
    y = line % h + tl.zeros([BLOCK], dtype=tl.int32)
    x = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    channel = tl.program_id(2) * WIDTH + tl.arange(0, WIDTH)
    real = (channel < C)[None, :]
    # Nothing is below zero after a ReLU, so that zero stands for the border too.
    best = tl.zeros([BLOCK, WIDTH], dtype=tl.float32)
    place = tl.full([BLOCK, WIDTH], NOWHERE, dtype=tl.int32)
    for window in tl.static_range(9):
        top = 2 * y - 1 + window // 3
        left = 2 * x - 1 + window % 3
        inside = (top >= 0) & (top < H) & (left >= 0) & (left < W) & (x < w)
        source = ((image * H + top) * W + left).to(tl.int64) * C
        value = tl.load(maps + source[:, None] + channel[None, :], mask=inside[:, None] & real, other=0.0)
        value = value.to(tl.float32)
        # As in PyTorch, what is not a number wins: a training that diverged must show.
        better = (value > best) | (value != value)
        best = tl.where(better, value, best)
        place = tl.where(better, window, place)
    target = (line * w + x).to(tl.int64)[:, None] * C + channel[None, :]
    whole = (x < w)[:, None] & real
    tl.store(pooled + target, best.to(pooled.dtype.element_ty), mask=whole)
    tl.store(places + target, place.to(tl.int8), mask=whole)


@triton.jit
def unpool_kernel(gradient, places, out, H, W, h, w, C, BLOCK: tl.constexpr, WIDTH: tl.constexpr):
    """Collect what the windows that hold a pixel, four at most, have for it: a part of one row of the gradient."""
    line = tl.program_id(0)
    image = line // H
    top = line % H + tl.zeros([BLOCK], dtype=tl.int32)
    left = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    channel = tl.program_id(2) * WIDTH + tl.arange(0, WIDTH)
    real = (channel < C)[None, :]
    total = tl.zeros([BLOCK, WIDTH], dtype=tl.float32)
    for neighbour in tl.static_range(4):
        y = top // 2 + neighbour // 2
        x = left // 2 + neighbour % 2
        # Where the pixel stands in that window; an even one has no second window, and would stand before it.
        down = top + 1 - 2 * y
        right = left + 1 - 2 * x
        inside = ((down >= 0) & (y < h) & (right >= 0) & (x < w) & (left < W))[:, None] & real
        source = ((image * h + y) * w + x).to(tl.int64)[:, None] * C + channel[None, :]
        place = tl.load(places + source, mask=inside, other=NOWHERE).to(tl.int32)
        value = tl.load(gradient + source, mask=inside, other=0.0).to(tl.float32)
        total += tl.where(place == (3 * down + right)[:, None], value, 0.0)
    target = (line * W + left).to(tl.int64)[:, None] * C + channel[None, :]
    tl.store(out + target, total.to(out.dtype.element_ty), mask=(left < W)[:, None] & real)


def spread_pixels(
    pixels: Float[Tensor, "B 3 H W"], sides: tuple[int, int], before: int, dtype: torch.dtype
) -> Float[Tensor, "B 16 h w"]:
    """Give every 2 x 2 pixels as one of 16 channels, in a map of these sides with ``before`` zeros on two of them."""
    (B, _, H, W), (h, w) = pixels.shape, sides
    out = _channels_last((B, 16, h, w), dtype, pixels.device)
    if out.numel():
        grid = (B * h, triton.cdiv(w, 4 * PIXELS))
        with torch.cuda.device_of(pixels):
            spread_kernel[grid](
                pixels, out, *pixels.stride(), H, W, h, w,
                BEFORE=before, BLOCK=4 * PIXELS, num_warps=4, enable_fp_fusion=True,
            )  # fmt: skip
    return out


def pool(maps: Float[Tensor, "B C H W"]) -> tuple[Float[Tensor, "B C h w"], Int8[Tensor, "B C h w"]]:
    """Give the maxima of 3 x 3 windows, two pixels apart and one over the border, and their places in the windows."""
    B, C, H, W = maps.shape
    h, w = (H + 1) // 2, (W + 1) // 2
    pooled = _channels_last((B, C, h, w), maps.dtype, maps.device)
    places = _channels_last((B, C, h, w), torch.int8, maps.device)
    if pooled.numel():
        width = min(64, triton.next_power_of_2(C))
        grid = (B * h, triton.cdiv(w, PIXELS), triton.cdiv(C, width))
        with torch.cuda.device_of(maps):
            pool_kernel[grid](
                maps, pooled, places, H, W, h, w, C, BLOCK=PIXELS, WIDTH=width, num_warps=4, enable_fp_fusion=True
            )
    return pooled, places


def unpool(
    gradient: Float[Tensor, "B C h w"], places: Int8[Tensor, "B C h w"], sides: tuple[int, int]
) -> Float[Tensor, "B C H W"]:
    """Bring a gradient back to the maxima that were above zero, in a map of these sides."""
    (B, C, h, w), (H, W) = gradient.shape, sides
    out = _channels_last((B, C, H, W), gradient.dtype, gradient.device)
    if out.numel():
        width = min(64, triton.next_power_of_2(C))
        grid = (B * H, triton.cdiv(W, PIXELS), triton.cdiv(C, width))
        with torch.cuda.device_of(gradient):
            unpool_kernel[grid](
                gradient, places, out, H, W, h, w, C, BLOCK=PIXELS, WIDTH=width, num_warps=4, enable_fp_fusion=True
            )
    return out


def _channels_last(shape: tuple[int, int, int, int], dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.empty(shape, dtype=dtype, device=device, memory_format=torch.channels_last)
