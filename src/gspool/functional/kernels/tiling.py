"""How a problem is cut into tiles: every prototype at once, and as many tokens as the registers then leave room for."""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch

MOST_PROTOTYPES = 1024
# Float32 accumulators of one program, over all of its threads.
ACCUMULATORS = 16384
# Channels that one program owns when gradients are formed slice by slice.
SLICE = 128
# Numbers in the tokens from which on that is worth its launches.
WORTH_SLICES = 2**22
# Below this much shared memory (data-centre GPUs have 163 KB and more) tiles are cut smaller.
AMPLE_SHARED_MEMORY = 160 * 1024
# What the slices of exact float32 gradients take; GPUs since the H100 have it.
SLICE_SHARED_MEMORY = 220 * 1024


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
def choose_tiling(
    tokens: int, prototypes: int, half_precision: bool, emulated: bool, ample: bool, backward: bool
) -> Tiling:
    """Choose the tile for a number of tokens an image and a number of prototypes.

    ``emulated`` says that float32 products are put together from TF32 ones out of tokens whose channels lie apart;
    their operands pass through registers in any case, and loads that run ahead only take memory from other programs.

    Example:
        >>> choose_tiling(49, 64, half_precision=False, emulated=True, ample=True, backward=False).tiles
        1
        >>> choose_tiling(1024, 128, half_precision=False, emulated=True, ample=True, backward=True).tiles
        8
    """
    columns = power_of_two(prototypes)
    # Forward, smaller tiles hide more of each other's waiting; backward, larger ones add to the prototypes less often.
    widest = 128 if backward else 64
    most_rows = max(16, min(widest, (ACCUMULATORS if ample else ACCUMULATORS // 4) // columns))
    rows = min(most_rows, power_of_two(tokens))
    wide = columns > 256
    tiles = -(-tokens // rows)
    channels = (32 if half_precision else 16) if wide else (64 if half_precision else 32)
    if emulated and tiles == 1 and ample and columns <= 128 and not backward:
        channels = 64
    return Tiling(
        rows=rows,
        columns=columns,
        channels=channels,
        tiles=tiles,
        warps=8 if backward or rows * columns > 8192 else 4,
        # Float32 pulls towards many prototypes fill the shared memory by themselves.
        stages=1
        if emulated or not ample or (columns > 128 and backward and not half_precision)
        else 2
        if wide or backward
        else 3,
    )


@functools.cache
def pull_tiling(
    images: int, tokens: int, prototypes: int, half_precision: bool, exact: bool, device: torch.device
) -> Tiling:
    """Choose the tile of the backward pass that writes its pulls down; it adds to nothing, so tiles may be small."""
    rows = min(64, power_of_two(tokens))
    tiles = -(-tokens // rows)
    channels = 64 if half_precision else 32
    if images * tiles <= processors(device) and not half_precision and not exact:
        # One program a multiprocessor: nobody else hides its waiting, so it takes larger steps with more threads.
        return Tiling(rows, power_of_two(prototypes), 2 * channels, tiles, warps=8, stages=2)
    stages = 1 if exact and not half_precision else 2
    return Tiling(rows, power_of_two(prototypes), channels, tiles, warps=4, stages=stages)


@functools.cache
def slice_tiling(tokens: int, prototypes: int, half_precision: bool, exact: bool) -> Tiling:
    """Choose the tile of the kernels that own a slice of the channels."""
    rows = min(64, power_of_two(tokens))
    stages = 3 if half_precision else 1 if exact else 2
    return Tiling(rows, power_of_two(prototypes), SLICE, -(-tokens // rows), warps=8, stages=stages)


def slices_are_worth_it(
    shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype, prototypes: int, roomy: bool
) -> bool:
    """Say whether the backward pass writes its pulls down and forms the gradients slice by slice of the channels.

    The pulls need room in the tokens' gradient, in its dtype; float16 has not the range for them. Small problems cannot
    make up for the launches it takes. And where tokens lie side by side (channels first) in numbers that break the
    16 bytes of a wide access, half-precision slices crawl.
    """
    images, tokens, channels = shape
    crooked = dtype == torch.bfloat16 and strides[2] != 1 and tokens % 8 != 0
    fits = dtype != torch.float16 and prototypes <= min(SLICE, channels) and roomy and not crooked
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
