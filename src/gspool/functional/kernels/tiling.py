"""How a problem is cut into tiles: every prototype at once, and as many tokens as the registers then leave room for."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, NamedTuple

import torch

if TYPE_CHECKING:
    from torch import Tensor

MOST_PROTOTYPES = 1024
# Float32 accumulators of one program, over all of its threads.
ACCUMULATORS = 16384
# Below this much shared memory (data-centre GPUs have 163 KB and more) tiles are cut smaller.
AMPLE_SHARED_MEMORY = 160 * 1024


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
    channels = (32 if half_precision else 16) if wide else (64 if half_precision else 32)
    return Tiling(
        rows=rows,
        columns=columns,
        channels=channels,
        tiles=-(-tokens // rows),
        warps=8 if backward or rows * columns > 8192 else 4,
        # Float32 pulls towards many prototypes fill the shared memory by themselves.
        stages=1
        if emulated or not ample or (columns > 128 and backward and not half_precision)
        else 2
        if wide or backward
        else 3,
    )


@functools.cache
def _shared_memory(index: int) -> int:
    return int(torch.cuda.get_device_properties(index).shared_memory_per_block_optin)


def has_ample_memory(tensor: Tensor) -> bool:
    """Say whether the device has the shared memory of a data-centre GPU."""
    return tensor.device.type != "cuda" or _shared_memory(tensor.device.index) >= AMPLE_SHARED_MEMORY


def tiling_of(tokens: Tensor, prototypes: int, precision: str, backward: bool) -> Tiling:
    """Choose the tile for tokens [B, N, D] and a precision as Triton names it."""
    half = tokens.dtype != torch.float32
    emulated = not half and precision == "tf32x3" and tokens.stride(2) != 1
    return choose_tiling(tokens.shape[1], prototypes, half, emulated, has_ample_memory(tokens), backward)


@functools.cache
def alignment(*sizes: int) -> int:
    """Give the largest power of two, up to 16, that divides all sizes: how wide a load may be."""
    width = 16
    while any(size % width for size in sizes):
        width //= 2
    return width
