"""Crops of resident images in one launch: every program reads a box where it lies and writes pixels of its crop."""

# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from gspool.functional.kernels.dispatch import on_device_of
from gspool.functional.kernels.launch import Launch
from gspool.functional.kernels.plan import misalignment

if TYPE_CHECKING:
    from jaxtyping import Int64, UInt8
    from torch import Tensor

# Pixels of a crop that one program writes, and the warps that do it.
BLOCK, WARPS = 256, 4
# 1.5 * 2**23: from here on a float32 has no digits behind the point, so adding it rounds half to even.
NO_FRACTION = tl.constexpr(12582912.0)


@triton.jit
def triangle(tap, centre, inverse_reach, first, end):
    """Weigh pixels of one axis by their distance from the centre of a sample; those outside the box weigh nothing."""
    weight = tl.maximum(1.0 - tl.abs(tap.to(tl.float32) + 0.5 - centre) * inverse_reach, 0.0)
    return tl.where((tap >= first) & (tap < end), weight, 0.0)


@triton.jit
def sample_axis(sample, start, length, SIZE: tl.constexpr):
    """Give the centres of samples of a stretch, their first taps, and one over how far the triangle reaches."""
    # Rounded as IEEE has it: a stretch of SIZE pixels has steps of exactly 1, and is copied.
    step = tl.div_rn(length.to(tl.float32), SIZE * 1.0)
    reach = tl.maximum(step, 1.0)
    centre = start.to(tl.float32) + (sample.to(tl.float32) + 0.5) * step
    # Where this rounds to the wrong side of a pixel, that pixel would have weighed less than a ten-thousandth.
    tap = tl.floor(centre - reach - 0.5).to(tl.int32) + 1
    return centre, tap, tl.div_rn(1.0, reach)


@triton.jit
def rounded(total, weight):
    """Give a weighted mean as the nearest level of 0 to 255, half to even."""
    # Only a box that leaves the frame has samples without a pixel; they are black.
    mean = tl.div_rn(total, tl.where(weight > 0.0, weight, 1.0))
    level = (mean + NO_FRACTION) - NO_FRACTION
    return tl.minimum(tl.maximum(level, 0.0), 255.0).to(tl.int32).to(tl.uint8)


@triton.jit
def crop_kernel(
    pixels, cuts, crops, H, W, stride_n, stride_c, stride_h, stride_w,
    SIZE: tl.constexpr, BLOCKS: tl.constexpr, BLOCK: tl.constexpr,
    TAPS_DOWN: tl.constexpr, TAPS_ACROSS: tl.constexpr,
):  # fmt: skip
    """Write BLOCK pixels, of three colours, of the crop that one line of ``cuts`` describes."""
    program = tl.program_id(0)
    image = program // BLOCKS
    place = (program % BLOCKS) * BLOCK + tl.arange(0, BLOCK)
    real = place < SIZE * SIZE
    cut = cuts + image * 6
    # The row stays an int64: times the bytes of an image, it is an address that int32 cannot hold.
    source = pixels + tl.load(cut) * stride_n
    top, left = tl.load(cut + 1).to(tl.int32), tl.load(cut + 2).to(tl.int32)
    height, width = tl.load(cut + 3).to(tl.int32), tl.load(cut + 4).to(tl.int32)
    column = place % SIZE
    column = tl.where(tl.load(cut + 5) != 0, SIZE - 1 - column, column)

    centre_y, first_y, inverse_y = sample_axis(place // SIZE, top, height, SIZE)
    centre_x, first_x, inverse_x = sample_axis(column, left, width, SIZE)
    bottom, right = tl.minimum(top + height, H), tl.minimum(left + width, W)
    top, left = tl.maximum(top, 0), tl.maximum(left, 0)
    red = tl.zeros([BLOCK], dtype=tl.float32)
    green = tl.zeros([BLOCK], dtype=tl.float32)
    blue = tl.zeros([BLOCK], dtype=tl.float32)
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for down in range(0, TAPS_DOWN):
        y = first_y + down
        weight_y = triangle(y, centre_y, inverse_y, top, bottom)
        for across in range(0, TAPS_ACROSS):
            x = first_x + across
            weight = weight_y * triangle(x, centre_x, inverse_x, left, right)
            # Most boxes are enlarged and need two taps of the four: what weighs nothing is not read.
            read = real & (weight > 0.0)
            pixel = source + y * stride_h + x * stride_w
            red += weight * tl.load(pixel, mask=read, other=0).to(tl.float32)
            green += weight * tl.load(pixel + stride_c, mask=read, other=0).to(tl.float32)
            blue += weight * tl.load(pixel + 2 * stride_c, mask=read, other=0).to(tl.float32)
            total += weight
    target = crops + (image.to(tl.int64) * (SIZE * SIZE) + place) * 3
    tl.store(target, rounded(red, total), mask=real)
    tl.store(target + 1, rounded(green, total), mask=real)
    tl.store(target + 2, rounded(blue, total), mask=real)


def most_taps(side: int, size: int) -> int:
    """Count the pixels that can lie under the triangle of a sample when ``side`` pixels become ``size``."""
    return math.ceil(2 * max(side / size, 1.0))


# Sizes, strides and alignment are those of a data set and a batch: a training has two kinds of call or three.
@functools.lru_cache(maxsize=64)
def _launch(
    count: int, size: int, frame: tuple[int, int], strides: tuple[int, ...], misaligned: int, device: torch.device
) -> Launch:
    blocks = triton.cdiv(size * size, BLOCK)
    constants = {
        "SIZE": size,
        "BLOCKS": blocks,
        "BLOCK": BLOCK,
        "TAPS_DOWN": most_taps(frame[0], size),
        "TAPS_ACROSS": most_taps(frame[1], size),
    }
    return Launch(crop_kernel, (count * blocks,), (*frame, *strides), constants, WARPS)


def crop_rows(pixels: UInt8[Tensor, "P 3 H W"], cuts: Int64[Tensor, "B 6"], size: int) -> UInt8[Tensor, "B 3 S S"]:
    """Do what `gspool.experiments.resident.crops.cut_out` does, in one launch; crops are laid out channels last.

    Nothing is copied beforehand and nothing waits for the device: how many pixels a sample may see follows from the
    frame, within which boxes must lie, and not from the boxes.
    """
    crops = torch.empty(
        (len(cuts), 3, size, size), dtype=torch.uint8, device=pixels.device, memory_format=torch.channels_last
    )
    if len(cuts) == 0:
        return crops
    cuts = cuts.contiguous()
    frame, misaligned = (pixels.shape[2], pixels.shape[3]), misalignment(pixels, cuts, crops)
    launch = _launch(len(cuts), size, frame, pixels.stride(), misaligned, pixels.device)
    with on_device_of(pixels):
        launch(pixels, cuts, crops)
    return crops
