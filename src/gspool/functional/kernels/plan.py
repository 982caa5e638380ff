"""How a call is cut into tiles and where its numbers stand: decided once for all calls of one kind.

`Kind` holds what decides over a call besides its data. `Layout` says where the forward pass leaves its numbers for the
backward pass; the names below it are the rows and entries that kernels read there.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
import triton.language as tl

if TYPE_CHECKING:
    from torch import Tensor

    from gspool.functional.results import Wanted

# What is kept of every token, one row each: `kept` begins with [B, TOKEN_ROWS, N]. A float32 holds the number of a
# prototype exactly.
AFFINITY, NORM, EXACT, NEAREST = (tl.constexpr(row) for row in range(4))
TOKEN_ROWS = tl.constexpr(4)
# What is kept of every image: `Layout.images_at` begins with IMAGE_ENTRIES numbers, and sums over its tokens follow.
# tau and the centre that it refers to, the sums of the shares given and held, the logarithm of the sum of slopes, the
# number of real tokens; MEAN is where `partial_transport` leaves a gradient between two kernels.
TAU, CENTRE, GIVEN, HELD, LOG_SLOPES, COUNT, MEAN = (tl.constexpr(entry) for entry in range(7))
IMAGE_ENTRIES = tl.constexpr(8)
# What the backward pass hands from the pulls to the slices of every token: [B, FACTOR_ROWS, N].
OWN_FACTOR, NEAR_PULL = tl.constexpr(0), tl.constexpr(1)
FACTOR_ROWS = tl.constexpr(2)
# The smallest normal float32: an image without any mass stays at zero.
TINY = tl.constexpr(1.1754944e-38)

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
# What the slices of exact float32 gradients take, and loads that run ahead of them; GPUs since the H100 have it.
SLICE_SHARED_MEMORY = 220 * 1024


class Settings(NamedTuple):
    """The arguments that are no features; a value stands for a tensor that is None.

    `partial_transport` has the first five, and leaves the others alone.
    """

    mu: Tensor | None
    mu_value: float
    epsilon: Tensor | None
    epsilon_value: float
    mask: Tensor | None
    background: bool = False
    precision: str = "tf32x3"

    def ready(self) -> Settings:
        """Bring mu and mask into the form that kernels read."""
        mu, mask = self.mu, self.mask
        if mu is None and mask is None:
            return self
        changed: dict[str, Any] = {
            "mu": None if mu is None else mu.contiguous(),
            "mask": None if mask is None else mask.view(torch.uint8),
        }
        return self._replace(**changed)


class Kind(NamedTuple):
    """All that decides how a call is compiled, tiled and launched; calls of one kind share their launches."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    prototypes: int
    prototype_dtype: torch.dtype
    device: torch.device
    mask_strides: tuple[int, ...] | None
    mu_dtype: torch.dtype | None
    epsilon_dtype: torch.dtype | None
    background: bool
    precision: str
    misaligned: int

    @property
    def parts(self) -> int:
        """In how many numbers of the tokens' dtype a prototype is written: two where one half is not exact enough."""
        return 2 if self.dtype != torch.float32 and self.precision != "tf32" else 1

    @property
    def all_strides(self) -> tuple[int, ...]:
        """Strides of the tokens and of the mask; zeros, which no kernel reads, where there is no mask."""
        return (*self.strides, *(self.mask_strides or (0, 0)))

    @property
    def operand(self) -> str:
        """The dtype of a matrix unit's operands."""
        return "bf16" if self.dtype == torch.bfloat16 else "fp32"


class BackwardKind(NamedTuple):
    """What decides over a backward pass besides the kind of the forward pass; ``keep`` as in `launch.pool_forward`."""

    keep: int
    grad_strides: tuple[int, ...]
    has_weights: bool
    has_attributes: bool
    wanted: Wanted
    atomic: bool
    misaligned: int


def kind_of(tokens: Tensor, prototypes: Tensor, settings: Settings) -> Kind:
    """Return the kind of a call."""
    misaligned = misalignment(tokens, prototypes, settings.mu, settings.epsilon, settings.mask)
    return kind_without_data(tokens, prototypes, settings, misaligned)


def unpacked(tokens: Tensor, prototypes: Tensor, settings: Settings, kind: Kind) -> tuple[Tensor, Kind]:
    """Return the tokens of a backward pass and its kind: that of the forward pass, where no hook has come between.

    Hooks of saved tensors, as those of offloading, keep values and shapes, but not where and how tensors stand in
    memory. `kept_sums` turns on whether channels lie side by side, so tokens are copied where that is not as it was.
    """
    mu, _, epsilon, _, mask, *_ = settings
    same = tokens.stride() == kind.strides and (mask is None or mask.stride() == kind.mask_strides)
    if same and misalignment(tokens, prototypes, mu, epsilon, mask) == kind.misaligned:
        return tokens, kind
    if (tokens.stride(2) == 1) != (kind.strides[2] == 1):
        tokens = tokens.contiguous() if kind.strides[2] == 1 else tokens.mT.contiguous().mT
    return tokens, kind_of(tokens, prototypes, settings)


def misalignment(*tensors: Tensor | None) -> int:
    """Mark by one bit each the tensors that do not start at a multiple of 16 bytes: no kernel loads them wide.

    Example:
        >>> numbers = torch.zeros(8)
        >>> misalignment(numbers, None, numbers[1:])
        4
    """
    starts = [0 if tensor is None else tensor.data_ptr() % 16 for tensor in tensors]
    return sum(1 << place for place, start in enumerate(starts) if start) if any(starts) else 0


def kind_without_data(tokens: Tensor, prototypes: Tensor, settings: Settings, misaligned: int = 0) -> Kind:
    """Return the kind of tensors that only have a shape, as a compiler shows them."""
    mu, _, epsilon, _, mask, background, precision = settings
    return Kind(
        tokens.shape,
        tokens.stride(),
        tokens.dtype,
        prototypes.shape[0],
        prototypes.dtype,
        tokens.device,
        None if mask is None else mask.stride(),
        None if mu is None else mu.dtype,
        None if epsilon is None else epsilon.dtype,
        background,
        precision,
        misaligned,
    )


class Layout(NamedTuple):
    """Where the kept numbers stand in the one tensor that holds them.

    First TOKEN_ROWS numbers a token; at ``images_at`` the numbers and sums of each image, ``image_stride`` apart; at
    ``norms_at`` the norms of the prototypes. The sums are those of tokens and assignments by slope, and, for the
    gradient of mu, the same by weight: each of length D + M. They are kept where the backward pass cuts images.
    """

    images_at: int
    image_stride: int
    norms_at: int
    length: int


def layout_of(images: int, tokens: int, channels: int, prototypes: int, sums: int) -> Layout:
    """Lay out the kept numbers; ``sums`` counts the sums of length D + M that an image has.

    Example:
        >>> layout_of(images=2, tokens=49, channels=64, prototypes=8, sums=1)
        Layout(images_at=400, image_stride=80, norms_at=560, length=568)
    """
    # Every part starts where wide loads may.
    images_at = (images * TOKEN_ROWS.value * tokens + 15) // 16 * 16
    stride = IMAGE_ENTRIES.value + sums * (channels + prototypes)
    norms_at = images_at + (images * stride + 15) // 16 * 16
    return Layout(images_at, stride, norms_at, norms_at + prototypes)


def kept_sums(kind: Kind, keep: int) -> int:
    """Count the sums of length D + M that the forward pass keeps of an image.

    Of an image that is one tile in the backward pass, that pass forms the sums itself.
    """
    # One image stands for all: a compiler that leaves their number open need not fix it for this.
    one = kind._replace(shape=(1, *kind.shape[1:]))
    return keep if keep and tiling_of(one, backward=True, sliced=is_sliced(kind)).tiles > 1 else 0


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


def tiling_of(kind: Kind, backward: bool, sliced: bool) -> Tiling:
    """Choose the tile for a kind of call."""
    # Under a compiler sizes may be symbols, which no cache takes as keys.
    tokens, prototypes = int(kind.shape[1]), int(kind.prototypes)
    half, exact = kind.dtype != torch.float32, kind.precision == "tf32x3"
    if backward and sliced:
        return pull_tiling(tokens, prototypes, half, exact)
    digits: Literal["half", "tf32", "exact"] = "half" if half else "exact" if exact else "tf32"
    work = Work(digits, bool(kind.strides[2] != 1), sums_of(kind) == "product")
    tiling = choose_tiling(tokens, prototypes, work, has_memory(kind.device, AMPLE_SHARED_MEMORY), backward)
    if backward and digits == "exact" and not has_memory(kind.device, SLICE_SHARED_MEMORY):
        return tiling._replace(stages=1)  # an A100 has no room for loads that run ahead, beside exact pulls
    return tiling


def power_of_two(size: int) -> int:
    """Return the smallest power of two that is not below ``size``, and at least 16, which matrix units ask for."""
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


def is_sliced(kind: Kind) -> bool:
    """Return whether the backward pass forms the gradients slice by slice where the tokens' gradient is wanted."""
    roomy = has_memory(kind.device, SLICE_SHARED_MEMORY)
    exact = kind.precision == "tf32x3"
    return slices_are_worth_it(kind.shape, kind.strides, kind.dtype, kind.prototypes, exact, roomy)


def slices_are_worth_it(
    shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype, prototypes: int, exact: bool, roomy: bool
) -> bool:
    """Return whether the backward pass writes its pulls down and forms the gradients slice by slice of the channels.

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


def sums_of(kind: Kind) -> Literal["product", "reduce"]:
    """Choose how tokens are summed by weight: by a matrix product, or by reducing over the threads of a tile.

    By what an H200 did faster. Where channels lie side by side, a sum over tokens crosses all warps, and a product
    pays, unless float32 tokens would have to be split for exact ones.
    """
    first, one_tile = bool(kind.strides[2] != 1), int(kind.shape[1]) <= SMALL_TILE
    if kind.dtype == torch.float16:
        return "reduce"
    if kind.dtype == torch.bfloat16:
        by_product = one_tile or not first
    elif kind.precision == "tf32":
        by_product = first or not one_tile
    else:
        by_product = first and one_tile
    return "product" if by_product else "reduce"


def gradient_precision(kind: Kind, columns: int) -> str:
    """Return the precision of the backward products, as Triton names it."""
    if kind.dtype != torch.float32:
        # The gradient of float16 tokens is formed from float32 values, whose range float16 does not have.
        return "tf32"
    if kind.precision == "tf32x3" and columns > 128:
        # Three TF32 products need both halves of all pulls in shared memory, which has no room for so many.
        return "ieee"
    return kind.precision


@functools.cache
def _shared_memory(index: int) -> int:
    return int(torch.cuda.get_device_properties(index).shared_memory_per_block_optin)


def has_memory(device: torch.device, needed: int) -> bool:
    """Return whether a device has so many bytes of shared memory; kernels that are only interpreted need none."""
    return device.type != "cuda" or _shared_memory(device.index) >= needed


@functools.cache
def processors(device: torch.device) -> int:
    """Count the multiprocessors that can work side by side; few where kernels are only interpreted."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 4


@functools.cache
def alignment(*sizes: int) -> int:
    """Return the largest power of two, up to 16, that divides all sizes: how wide a load may be."""
    width = 16
    while any(size % width for size in sizes):
        width //= 2
    return width
