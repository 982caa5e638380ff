"""The distances of all tokens and prototypes as one matrix, and their gradient, for costs used apart from `gsp_pool`.

Both passes read the tokens tile by tile, as those of `gsp_pool` do, and share its steps (`distance`, `backward`).
"""

# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import triton
import triton.language as tl

from gspool.functional.kernels.backward import (
    add_near_gradient,
    add_to_sums,
    prototype_gradient_kernel,
    spread_gradient,
    to_pulls,
)
from gspool.functional.kernels.distance import (
    clip_prototypes_kernel,
    keep_nearest,
    known_multiple,
    tile_distances,
    tile_rows,
    token_rows,
)
from gspool.functional.kernels.launch import DETERMINISTIC_PROGRAMS, Launch, addressable, prototype_gradient_memory
from gspool.functional.kernels.plan import (
    EXACT,
    NEAREST,
    NORM,
    Kind,
    Layout,
    Settings,
    Tiling,
    alignment,
    gradient_precision,
    kind_of,
    layout_of,
    misalignment,
    tiling_of,
)

if TYPE_CHECKING:
    from torch import Tensor

# Exact pulls of one tile; twice as many take more shared memory than an H100 has.
EXACT_PULLS = 8192


@triton.jit
def distance_map_kernel(
    tokens, prototypes, clipped, kept, distances,
    N, M, D, T, stride_b, stride_n, stride_d, norms_at,
    BN: tl.constexpr, BM: tl.constexpr, BD: tl.constexpr, PRECISION: tl.constexpr, PARTS: tl.constexpr,
    STAGES: tl.constexpr, N_HINT: tl.constexpr, D_HINT: tl.constexpr,
):  # fmt: skip
    """Write the distances [M, N] of a tile of tokens, and their norms and nearest prototypes."""
    N = known_multiple(N, N_HINT)
    stride_d = known_multiple(stride_d, D_HINT)
    image = (tl.program_id(0) // T).to(tl.int64)
    row, real = tile_rows(tl.program_id(0) % T, N, None, image, 0, 0, BN, False)
    found, norm, exact, nearest = tile_distances(
        tokens + image * stride_b, row * stride_n, real, stride_d, prototypes, clipped, kept + norms_at, M, D,
        BN, BM, BD, PRECISION, PARTS, STAGES,
    )  # fmt: skip
    keep_nearest(kept, image, row, N, norm, exact, nearest)
    column = tl.arange(0, BM)
    # The maximum with 0 under the root leaves NaN out, and would make it a distance of 0.
    w_norm = tl.load(kept + norms_at + column, mask=column < M, other=0.0)
    finite = (norm < float("inf"))[:, None] & (w_norm < float("inf"))[None, :]
    address = distances + (image * M + column[None, :]) * N + row[:, None]
    tl.store(address, tl.where(finite, found, float("nan")), mask=real[:, None] & (column < M)[None, :])


@triton.jit
def distance_gradient_kernel(
    tokens, prototypes, clipped, kept, distances, gradient, grad_tokens, accumulated,
    N, M, D, T, works, stride_b, stride_n, stride_d, norms_at, grad_stride_b, grad_stride_n, grad_stride_d,
    BN: tl.constexpr, BM: tl.constexpr, BD: tl.constexpr, PRECISION: tl.constexpr, OPERAND: tl.constexpr,
    STAGES: tl.constexpr, ATOMIC: tl.constexpr, TOKENS: tl.constexpr, PROTOTYPES: tl.constexpr, ONCE: tl.constexpr,
    N_HINT: tl.constexpr, D_HINT: tl.constexpr, GRAD_HINT: tl.constexpr,
):  # fmt: skip
    """Differentiate tile after tile; each program adds to its own sums unless additions may be atomic."""
    N = known_multiple(N, N_HINT)
    stride_d = known_multiple(stride_d, D_HINT)
    grad_stride_d = known_multiple(grad_stride_d, GRAD_HINT)
    column = tl.arange(0, BM)
    w_norms = kept + norms_at
    w_length = tl.minimum(tl.load(w_norms + column, mask=column < M, other=0.0), 1.0)
    if PROTOTYPES and not ATOMIC:
        accumulated += tl.program_id(0).to(tl.int64) * (M * D + M)
    # With a program for every tile, the compiler is told so: it need not keep anything for a next tile.
    stop = tl.program_id(0) + 1 if ONCE else works
    step = 1 if ONCE else tl.num_programs(0)
    for work in range(tl.program_id(0), stop, step):
        image = (work // T).to(tl.int64)
        row, real = tile_rows(work % T, N, None, image, 0, 0, BN, False)
        row_offset = row * stride_n
        image_tokens = tokens + image * stride_b
        base = token_rows(kept, image, row, N)
        norm = tl.load(base + NORM * N, mask=real, other=0.0)
        exact = tl.load(base + EXACT * N, mask=real, other=-1.0)
        nearest = tl.load(base + NEAREST * N, mask=real, other=0.0).to(tl.int32)
        scale = 1.0 / tl.maximum(norm, 1.0)
        place = (image * M + column[None, :]) * N + row[:, None]
        present = real[:, None] & (column < M)[None, :]
        found = tl.load(distances + place, mask=present, other=1.0)
        incoming = tl.load(gradient + place, mask=present, other=0.0)
        # The product of raw token and clipped prototype, from the square of their distance.
        length = norm * scale
        product = (length * length)[:, None] + (w_length * w_length)[None, :] - found * found
        product *= (0.5 / scale)[:, None]
        pull, near_pull, own_factor = to_pulls(
            incoming, scale, found, product, image_tokens, row_offset, real, stride_d,
            prototypes, w_norms, nearest, norm, exact, scale, column, D, BN, BD,
        )  # fmt: skip
        grad_row_offset, there = row * grad_stride_n, row < N
        image_grad = grad_tokens + image * grad_stride_b if TOKENS else None
        spread_gradient(
            image_tokens, row_offset, real, stride_d, clipped, None, image_grad, grad_row_offset, there, grad_stride_d,
            accumulated, work, pull, None, own_factor, M, D,
            BM, BD, PRECISION, OPERAND, STAGES, ATOMIC, TOKENS, PROTOTYPES, False,
        )  # fmt: skip
        if tl.max(exact, axis=0) >= 0.0:
            add_near_gradient(
                image_tokens, row_offset, real, stride_d, prototypes, w_norms, image_grad, grad_row_offset, there,
                grad_stride_d, accumulated, scale, nearest, near_pull, M, D,
                BM, BD, PRECISION, OPERAND, ATOMIC, TOKENS, PROTOTYPES,
            )  # fmt: skip
        if PROTOTYPES:
            add_to_sums(accumulated + M * D + column, tl.sum(pull / scale[:, None], axis=0), column < M, ATOMIC)
            if not ATOMIC:
                # The next tile reads what this one wrote.
                tl.debug_barrier()


class ForwardPlan(NamedTuple):
    """The launches of one kind of forward pass."""

    layout: Layout
    clip: Launch
    distances: Launch


@functools.lru_cache(maxsize=64)
def plan_forward(kind: Kind) -> ForwardPlan:
    """Prepare the launches for a kind of call."""
    B, N, D = kind.shape
    M, tiling = kind.prototypes, tiling_of(kind, backward=False, sliced=False)
    layout = layout_of(B, N, D, M, 0)
    how: dict[str, Any] = {"BN": tiling.rows, "BM": tiling.columns, "BD": tiling.channels, "STAGES": tiling.stages}
    how |= {"PRECISION": kind.precision, "PARTS": kind.parts}
    how |= {"N_HINT": alignment(N), "D_HINT": alignment(kind.strides[2])}
    return ForwardPlan(
        layout,
        Launch(clip_prototypes_kernel, (M,), (layout.norms_at, M, D), {"BD": 1024, "PARTS": kind.parts}, warps=4),
        Launch(
            distance_map_kernel,
            (B * tiling.tiles,),
            (N, M, D, tiling.tiles, *kind.strides, layout.norms_at),
            how,
            tiling.warps,
        ),
    )


class BackwardPlan(NamedTuple):
    """The launches of one kind of backward pass, and how many parts the prototypes' sums have."""

    tiles: Launch
    finish: Launch
    parts: int


def gradient_tiling(kind: Kind) -> Tiling:
    """Choose the tile of the backward pass, with room for the pulls in shared memory.

    Pulls that come from loads go there in both halves of three TF32 products, straight and transposed.
    """
    tiling = tiling_of(kind, backward=True, sliced=False)
    if gradient_precision(kind, tiling.columns) != "tf32x3":
        return tiling
    rows = min(tiling.rows, EXACT_PULLS // tiling.columns)
    return tiling._replace(rows=rows, tiles=-(-kind.shape[1] // rows), stages=1)


@functools.lru_cache(maxsize=64)
def plan_backward(
    kind: Kind, grad_strides: tuple[int, ...], tokens: bool, prototypes: bool, atomic: bool, misaligned: int
) -> BackwardPlan:
    """Prepare the launches for a kind of call and the gradients that are wanted of it.

    ``misaligned`` marks tensors that only the backward pass reads: it keeps apart what `Launch` must not mix.
    """
    B, N, D = kind.shape
    M, tiling = kind.prototypes, gradient_tiling(kind)
    layout, works = layout_of(B, N, D, M, 0), B * tiling.tiles
    programs = works if atomic else min(works, DETERMINISTIC_PROGRAMS)
    parts = 1 if atomic else programs
    how: dict[str, Any] = {"BN": tiling.rows, "BM": tiling.columns, "BD": tiling.channels, "STAGES": tiling.stages}
    how |= {"PRECISION": gradient_precision(kind, tiling.columns), "OPERAND": kind.operand, "ATOMIC": atomic}
    how |= {"TOKENS": tokens, "PROTOTYPES": prototypes, "ONCE": programs == works}
    how |= {"N_HINT": alignment(N), "D_HINT": alignment(kind.strides[2]), "GRAD_HINT": alignment(grad_strides[2])}
    sizes = (N, M, D, tiling.tiles, works, *kind.strides, layout.norms_at, *grad_strides)
    return BackwardPlan(
        Launch(distance_gradient_kernel, (programs,), sizes, how, tiling.warps),
        Launch(prototype_gradient_kernel, (M,), (layout.norms_at, M, D, parts), {"BD": 1024, "BP": 16}, warps=4),
        parts,
    )


def distance_kind(tokens: Tensor, prototypes: Tensor, precision: str) -> Kind:
    """Return what decides over a call: no mu, epsilon or mask takes part."""
    return kind_of(tokens, prototypes, Settings(None, 0.5, None, 0.0, None, False, precision))


def distance_forward(tokens: Tensor, prototypes: Tensor, precision: str) -> tuple[Tensor, Tensor, Tensor]:
    """Return the distances [B, M, N], and for the backward pass the kept numbers and the clipped prototypes."""
    tokens, prototypes = addressable(tokens), prototypes.contiguous()
    (B, N, D), M = tokens.shape, prototypes.shape[0]
    kind = distance_kind(tokens, prototypes, precision)
    plan = plan_forward(kind)
    distances = tokens.new_empty((B, M, N), dtype=torch.float32)
    kept = tokens.new_empty(plan.layout.length, dtype=torch.float32)
    clipped = tokens.new_empty((kind.parts, M, D))
    plan.clip(prototypes, kept, clipped)
    if B > 0:
        plan.distances(tokens, prototypes, clipped, kept, distances)
    return distances, kept, clipped


def distance_backward(
    tokens: Tensor,
    prototypes: Tensor,
    precision: str,
    distances: Tensor,
    kept: Tensor,
    clipped: Tensor,
    gradient: Tensor,
    want_tokens: bool,
    want_prototypes: bool,
) -> tuple[Tensor | None, Tensor | None]:
    """Return the gradients of tokens and prototypes that are wanted."""
    grad_tokens = torch.empty_like(tokens) if want_tokens else None
    tokens, contiguous = addressable(tokens), prototypes.contiguous()
    M, D = contiguous.shape
    atomic = not torch.are_deterministic_algorithms_enabled()
    strides = (0, 0, 0) if grad_tokens is None else grad_tokens.stride()
    gradient = gradient.float().contiguous()
    kind, misaligned = distance_kind(tokens, contiguous, precision), misalignment(gradient, distances, kept, clipped)
    plan = plan_backward(kind, strides, want_tokens, want_prototypes, atomic, misaligned)
    accumulated = tokens.new_zeros((plan.parts, M * D + M), dtype=torch.float32) if want_prototypes else None
    if tokens.shape[0] > 0:
        plan.tiles(tokens, contiguous, clipped, kept, distances, gradient, grad_tokens, accumulated)
    if accumulated is None:
        return grad_tokens, None
    grad_prototypes = prototype_gradient_memory(prototypes, accumulated)
    plan.finish(contiguous, kept, accumulated, grad_prototypes)
    return grad_tokens, grad_prototypes
