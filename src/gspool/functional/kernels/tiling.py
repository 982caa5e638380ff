"""How a problem is cut into tiles: every prototype at once, and as many tokens as the registers then leave room for."""

from __future__ import annotations

import functools
from typing import Literal, NamedTuple

import torch

MOST_PROTOTYPES = 1024
# Float32 accumulators of one program, over all of its threads.
ACCUMULATORS = 16384
# Tokens of a tile.
SMALL_TILE, LARGE_TILE = 64, 128
# Channels that one program owns when gradients are formed slice by slice.
SLICE = 128
# Numbers in the tokens from which on that is worth its launches.
WORTH_SLICES = 2**22
# Below this much shared memory (data-centre GPUs have 163 KB and more) tiles are cut smaller.
AMPLE_SHARED_MEMORY = 160 * 1024
# What the slices of exact float32 gradients take; GPUs since the H100 have it.
SLICE_SHARED_MEMORY = 220 * 1024


class Work(NamedTuple):
    """How a tile is worked on: the digits of its products, the layout of its tokens, whether a product sums them."""

    digits: Literal["half", "tf32", "exact"]
    channels_first: bool
    by_product: bool


class Tiling(NamedTuple):
    """Sizes of one launch; ``tiles`` is the number of tiles an image."""

    rows: int
    columns: int
    channels: int
    tiles: int
    warps: int
    stages: int


def power_of_two(size: int) -> int:
    """Give the smallest power of two that is not below ``size``, and at least 16, which matrix units ask for."""
    return max(16, 1 << (size - 1).bit_length())


@functools.cache
def choose_tiling(tokens: int, prototypes: int, work: Work, ample: bool, backward: bool) -> Tiling:
    """Choose the tile for a number of tokens an image and a number of prototypes, by what an H200 did fastest.

    Example:
        >>> exact = Work("exact", channels_first=True, by_product=False)
        >>> choose_tiling(49, 64, exact, ample=True, backward=False).tiles
        1
        >>> choose_tiling(1024, 128, exact, ample=True, backward=True).tiles
        8
    """
    half = work.digits == "half"
    columns = power_of_two(prototypes)
    # Backward, large tiles add to the prototypes less often, and sums by product share what is loaded of these;
    # otherwise smaller ones hide more of each other's waiting.
    large = backward or (half and work.by_product and tokens > LARGE_TILE)
    most_rows = max(
        16, min(LARGE_TILE if large else SMALL_TILE, (ACCUMULATORS if ample else ACCUMULATORS // 4) // columns)
    )
    rows = min(most_rows, power_of_two(tokens))
    wide = columns > 256
    tiles = -(-tokens // rows)
    channels = (32 if half else 16) if wide else (64 if half else 32)
    # Three TF32 products out of tokens whose channels lie apart: their operands pass through registers in any case.
    emulated = work.digits == "exact" and work.channels_first
    if emulated and tiles == 1 and ample and columns <= 128 and not backward:
        channels = 64
    if not ample or (emulated and (backward or tiles == 1)) or (columns > 128 and backward and not half):
        # Loads that run ahead would take the memory from other programs, or from float32 pulls.
        stages = 1
    elif wide or backward:
        stages = 2
    else:
        stages = 4 if work.digits == "tf32" and not work.channels_first and tiles == 1 else 3
    warps = 8 if backward or rows * columns > 8192 else 4
    return Tiling(rows, columns, channels, tiles, warps, stages)


@functools.cache
def pull_tiling(tokens: int, prototypes: int, half_precision: bool, exact: bool) -> Tiling:
    """Choose the tile of the backward pass that writes its pulls down; it adds to nothing, so tiles may be small."""
    rows = min(SMALL_TILE, power_of_two(tokens))
    stages = 1 if exact and not half_precision else 3
    return Tiling(rows, power_of_two(prototypes), 64 if half_precision else 32, -(-tokens // rows), 4, stages)


@functools.cache
def slice_tiling(tokens: int, prototypes: int, exact: bool) -> Tiling:
    """Choose the tile of the kernels that own a slice of the channels."""
    rows = min(SMALL_TILE, power_of_two(tokens))
    return Tiling(rows, power_of_two(prototypes), SLICE, -(-tokens // rows), warps=8, stages=1 if exact else 3)


def slices_are_worth_it(
    shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype, prototypes: int, exact: bool, roomy: bool
) -> bool:
    """Say whether the backward pass writes its pulls down and forms the gradients slice by slice of the channels.

    The pulls need room in the tokens' gradient, in its dtype; float16 has not the range for them. Small problems cannot
    make up for the launches it takes. Where tokens lie side by side (channels first) in numbers that break the 16 bytes
    of a wide access, half-precision slices are no faster than one kernel, nor are products as exact as float32 where
    channels lie side by side.
    """
    images, tokens, channels = shape
    first = strides[2] != 1
    slow = (first and tokens % 8 != 0) if dtype == torch.bfloat16 else (exact and not first)
    fits = dtype != torch.float16 and prototypes <= min(SLICE, channels) and roomy and not slow
    return fits and images * tokens * channels >= WORTH_SLICES


@functools.cache
def _shared_memory(index: int) -> int:
    return int(torch.cuda.get_device_properties(index).shared_memory_per_block_optin)


def has_memory(device: torch.device, needed: int) -> bool:
    """Say whether a device has so many bytes of shared memory; kernels that are only interpreted need none."""
    return device.type != "cuda" or _shared_memory(device.index) >= needed


@functools.cache
def processors(device: torch.device) -> int:
    """Count the multiprocessors that can work side by side; few where kernels are only interpreted."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 4


@functools.cache
def alignment(*sizes: int) -> int:
    """Give the largest power of two, up to 16, that divides all sizes: how wide a load may be."""
    width = 16
    while any(size % width for size in sizes):
        width //= 2
    return width
