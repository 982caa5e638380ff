"""Prepare the launches of a backward pass of `gsp_pool`, once for every kind of call."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch

from gspool.functional.kernels.gradient_slices import gradient_slice_kernel, near_gradient_kernel
from gspool.functional.kernels.kept import KeptLayout, kept_layout
from gspool.functional.kernels.launch import Launch
from gspool.functional.kernels.pool_backward import pool_backward_kernel
from gspool.functional.kernels.pool_settings import Kind, is_sliced, kept_sums, mask_strides, operand_of, tiling_of
from gspool.functional.kernels.prototype_gradient import prototype_gradient_kernel
from gspool.functional.kernels.tiling import Tiling, alignment, processors, slice_tiling

# Programs that add to sums of their own where atomic additions are not allowed; the same on every device.
DETERMINISTIC_PROGRAMS = 128
DETERMINISTIC_SPLITS = 16


class Wanted(NamedTuple):
    """Which gradients are asked for."""

    tokens: bool
    prototypes: bool
    mu: bool
    epsilon: bool


class BackwardKind(NamedTuple):
    """What decides over a backward pass besides the kind of the forward pass; ``keep`` as in `pool_forward`."""

    keep: int
    grad_strides: tuple[int, ...]
    has_weights: bool
    has_attributes: bool
    wanted: Wanted
    atomic: bool
    misaligned: int


class BackwardPlan(NamedTuple):
    """The launches of one kind of backward pass, in their order, and how many parts the prototypes' sums have."""

    tiles: Launch
    slices: tuple[Launch, ...]
    near: Launch | None
    finish: Launch
    works: int
    parts: int
    factors: int


def gradient_precision(kind: Kind, columns: int) -> str:
    """Name the precision of the backward products, as Triton names it."""
    if kind.dtype != torch.float32:
        # The gradient of float16 tokens is formed from float32 values, whose range float16 does not have.
        return "tf32"
    if kind.precision == "tf32x3" and columns > 128:
        # Three TF32 products need both halves of all pulls in shared memory, which has no room for so many.
        return "ieee"
    return kind.precision


@functools.lru_cache(maxsize=256)
def plan_backward(kind: Kind, back: BackwardKind) -> BackwardPlan:
    """Prepare the launches for a kind of call."""
    B, N, D = kind.shape
    M, wanted = kind.prototypes, back.wanted
    sliced = wanted.tokens and is_sliced(kind)
    tiling = tiling_of(kind, backward=True, sliced=sliced)
    T = tiling.tiles
    layout = kept_layout(B, N, D, M, kept_sums(kind, back.keep))
    if back.atomic:
        programs, parts = B * T, 1
    elif sliced:
        programs, parts = B * T, min(DETERMINISTIC_SPLITS, B)
    else:
        programs = parts = min(B * T, DETERMINISTIC_PROGRAMS)
    strides = (*kind.strides, *mask_strides(kind.mask_strides))
    precision = gradient_precision(kind, tiling.columns)
    hints = {"N_HINT": alignment(N), "D_HINT": alignment(kind.strides[2]), "GRAD_HINT": alignment(back.grad_strides[2])}
    shared: dict[str, Any] = {
        "OPERAND": operand_of(kind),
        "HAS_MASK": kind.mask_strides is not None,
        "BACKGROUND": kind.background,
        "ATOMIC": back.atomic,
        "PROTOTYPES": wanted.prototypes,
    }
    tiles = Launch(
        pool_backward_kernel,
        (programs,),
        (N, M, D, T, B * T, *strides, layout.summary_at, layout.norms_at, layout.summary_stride, *back.grad_strides),
        {"BN": tiling.rows, "BM": tiling.columns, "BD": tiling.channels, "BS": tiling.channels, "BV": 1024}
        | {"PRECISION": kind.precision, "GRADIENT_PRECISION": precision, "PARTS": kind.parts, "STAGES": tiling.stages}
        | {"HAS_MU": kind.mu_dtype is not None, "HAS_EPSILON": kind.epsilon_dtype is not None, "WHOLE": T == 1}
        | {"HAS_GW": back.has_weights, "HAS_GA": back.has_attributes, "TOKENS": wanted.tokens, "MU": wanted.mu}
        | {"EPSILON": wanted.epsilon, "SLICED": sliced, "ONCE": programs == B * T}
        | shared
        | hints,
        tiling.warps,
    )
    finish = Launch(
        prototype_gradient_kernel, (M,), (layout.norms_at, M, D, parts), {"BD": 1024, "BP": 16}, warps=4
    )  # fmt: skip
    if not sliced:
        return BackwardPlan(tiles, (), None, finish, B * T, parts, 0)
    cut = slice_tiling(N, M, kind.dtype == torch.float32 and precision == "tf32x3")
    slices = _slice_launches(kind, back, cut, layout, parts, shared | {"PRECISION": precision} | hints)
    works = B * cut.tiles
    near = Launch(
        near_gradient_kernel,
        (works if back.atomic else parts,),
        (N, M, D, cut.tiles, works, *strides, layout.norms_at, *back.grad_strides),
        {"BN": cut.rows, "BM": cut.columns, "BS": tiling.channels, "PRECISION": precision}
        | {name: shared[name] for name in ("OPERAND", "HAS_MASK", "ATOMIC", "PROTOTYPES")},
        warps=8,
    )
    return BackwardPlan(tiles, slices, near, finish, B * T, parts, 2 * B * N)


def _slice_launches(
    kind: Kind, back: BackwardKind, cut: Tiling, layout: KeptLayout, parts: int, how: dict[str, Any]
) -> tuple[Launch, ...]:
    B, N, D = kind.shape
    T = cut.tiles
    count = -(-D // cut.channels)
    launches = []
    # The first slice overwrites the pulls, so it comes last.
    for first, slices in ((1, count - 1), (0, 1)):
        if slices == 0:
            continue
        splits = max(1, min(B * T, processors(kind.device) // slices)) if back.atomic else parts
        sizes = (N, kind.prototypes, D, T, B * T, first, slices, splits)
        where = (*kind.strides, *mask_strides(kind.mask_strides), layout.summary_at, layout.summary_stride)
        shape = {"BN": cut.rows, "BM": cut.columns, "BS": cut.channels, "STAGES": cut.stages}
        launches.append(
            Launch(
                gradient_slice_kernel,
                (slices * splits,),
                (*sizes, *where, *back.grad_strides),
                shape | {"COUNT_PULLS": first == 0} | how,
                cut.warps,
            )
        )
    return tuple(launches)
