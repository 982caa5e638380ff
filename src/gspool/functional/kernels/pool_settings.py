"""What a call of `gsp_pool` asks of its kernels, and which part of that a prepared launch depends on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch

from gspool.functional.kernels.tiling import (
    AMPLE_SHARED_MEMORY,
    SLICE_SHARED_MEMORY,
    SMALL_TILE,
    Tiling,
    Work,
    choose_tiling,
    has_memory,
    pull_tiling,
    slices_are_worth_it,
)

if TYPE_CHECKING:
    from torch import Tensor


class Settings(NamedTuple):
    """The arguments of `gsp_pool` that are not tokens or prototypes; a value stands for a tensor that is None."""

    mu: Tensor | None
    mu_value: float
    epsilon: Tensor | None
    epsilon_value: float
    mask: Tensor | None
    background: bool
    precision: str


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


def kind_of(tokens: Tensor, prototypes: Tensor, settings: Settings) -> Kind:
    """Say what kind of call this is."""
    misaligned = misalignment(tokens, prototypes, settings.mu, settings.epsilon, settings.mask)
    return kind_without_data(tokens, prototypes, settings, misaligned)


def misalignment(*tensors: Tensor | None) -> int:
    """Mark by one bit each the tensors that do not start at a multiple of 16 bytes: of them, no kernel loads wide.

    Example:
        >>> numbers = torch.zeros(8)
        >>> misalignment(numbers, None, numbers[1:])
        4
    """
    starts = [0 if tensor is None else tensor.data_ptr() % 16 for tensor in tensors]
    return sum(1 << place for place, start in enumerate(starts) if start) if any(starts) else 0


def kind_without_data(tokens: Tensor, prototypes: Tensor, settings: Settings, misaligned: int = 0) -> Kind:
    """Say the same of tensors that only have a shape, as a compiler shows them."""
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


def is_sliced(kind: Kind) -> bool:
    """Say whether the backward pass forms the gradients slice by slice where the tokens' gradient is wanted."""
    roomy = has_memory(kind.device, SLICE_SHARED_MEMORY)
    exact = kind.precision == "tf32x3"
    return slices_are_worth_it(kind.shape, kind.strides, kind.dtype, kind.prototypes, exact, roomy)


def tiling_of(kind: Kind, backward: bool, sliced: bool) -> Tiling:
    """Choose the tile for a kind of call."""
    # Under a compiler sizes may be symbols, which no cache takes as keys.
    tokens, prototypes = int(kind.shape[1]), int(kind.prototypes)
    half, exact = kind.dtype != torch.float32, kind.precision == "tf32x3"
    if backward and sliced:
        return pull_tiling(tokens, prototypes, half, exact)
    digits: Literal["half", "tf32", "exact"] = "half" if half else "exact" if exact else "tf32"
    work = Work(digits, bool(kind.strides[2] != 1), sums_of(kind) == "product")
    return choose_tiling(tokens, prototypes, work, has_memory(kind.device, AMPLE_SHARED_MEMORY), backward)


def operand_of(kind: Kind) -> str:
    """Name the dtype of a matrix unit's operands."""
    return "bf16" if kind.dtype == torch.bfloat16 else "fp32"


def sums_of(kind: Kind) -> Literal["product", "reduce"]:
    """Say how tokens are summed by weight: by a matrix product, or by reducing over the threads of a tile.

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


def kept_sums(kind: Kind, keep: int) -> int:
    """Count the sums of length D + M that the forward pass keeps of an image.

    Of an image that is one tile in the backward pass, that pass forms the sums itself.
    """
    # One image stands for all: a compiler that leaves their number open need not fix it for this.
    one = kind._replace(shape=(1, *kind.shape[1:]))
    return keep if keep and tiling_of(one, backward=True, sliced=is_sliced(kind)).tiles > 1 else 0


def mask_strides(strides: tuple[int, ...] | None) -> tuple[int, ...]:
    """Give the strides of a mask, or zeros that no kernel looks at."""
    return (0, 0) if strides is None else strides


def addressable(tokens: Tensor) -> Tensor:
    """Copy tokens only if one image spans more than the 32-bit offsets of the kernels can reach."""
    _, N, D = tokens.shape
    _, stride_n, stride_d = tokens.stride()
    return tokens if (N - 1) * stride_n + (D - 1) * stride_d < 2**31 else tokens.contiguous()


def ready(settings: Settings) -> Settings:
    """Bring mu and mask into the form that kernels read."""
    mu, mask = settings.mu, settings.mask
    if mu is None and mask is None:
        return settings
    changed: dict[str, Any] = {
        "mu": None if mu is None else mu.contiguous(),
        "mask": None if mask is None else mask.view(torch.uint8),
    }
    return settings._replace(**changed)
