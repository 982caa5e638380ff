"""From one tile of tokens to distances, log-affinities and, if wanted, the assignment to prototypes."""

# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

import triton
import triton.language as tl

from gspool.functional.kernels.measure import (
    measure_nearest,
    multiply_accumulate,
    read_tokens,
    refined_distances,
    squared_distances,
)

# Squared distances above this are as exact as their root can hold, as in the plain version.
CLOSE = tl.constexpr(0.25)


@triton.jit
def tile_rows(tile, N, mask, image, stride_mb, stride_mn, BN: tl.constexpr, HAS_MASK: tl.constexpr):
    """Give the token numbers of a tile, and which of them exist and are not padding."""
    row = tile * BN + tl.arange(0, BN)
    real = row < N
    if HAS_MASK:
        real = real & (tl.load(mask + image * stride_mb + row * stride_mn, mask=real, other=0) != 0)
    return row, real


@triton.jit
def tile_products(
    tokens, row_offset, real, stride_d, clipped, column, M, D,
    BN: tl.constexpr, BM: tl.constexpr, BD: tl.constexpr,
    PRECISION: tl.constexpr, PARTS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Multiply the raw tokens of a tile with all prototypes, and measure the tokens' norms on the way."""
    product = tl.zeros([BN, BM], dtype=tl.float32)
    squares = tl.zeros([BN, BD], dtype=tl.float32)
    for start in tl.range(0, D, BD, num_stages=STAGES):
        channel = start + tl.arange(0, BD)
        f = read_tokens(tokens, row_offset, real, channel, stride_d, D)
        product = multiply_accumulate(f, clipped, column, channel, product, M, D, BN, BM, PRECISION, PARTS)
        wide = f.to(tl.float32)
        squares += wide * wide
    return product, tl.sqrt(tl.sum(squares, axis=1))


@triton.jit
def tile_affinity(
    tokens, row_offset, real, stride_d, prototypes, clipped, w_norms, epsilon, M, D,
    BN: tl.constexpr, BM: tl.constexpr, BD: tl.constexpr,
    PRECISION: tl.constexpr, PARTS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Give ``-epsilon c_ij``, ``l_j``, and what the backward pass wants to know of the nearest prototypes."""
    column = tl.arange(0, BM)
    w_norm = tl.load(w_norms + column, mask=column < M, other=0.0)
    product, norm = tile_products(
        tokens, row_offset, real, stride_d, clipped, column, M, D,
        BN, BM, BD, PRECISION, PARTS, STAGES,
    )  # fmt: skip
    squared = squared_distances(product, norm, w_norm, column, M)
    lowest = tl.min(squared, axis=1)
    nearest = tl.argmin(squared, axis=1)
    exact = tl.full([BN], -1.0, dtype=tl.float32)
    if tl.min(tl.where(real, lowest, 1.0), axis=0) < CLOSE:
        scale = 1.0 / tl.maximum(norm, 1.0)
        exact = measure_nearest(tokens, row_offset, real, stride_d, prototypes, w_norms, nearest, scale, D, BN, BD)
    distances = refined_distances(squared, lowest, exact)
    # epsilon = 0 must not meet the infinite distance of a prototype that does not exist.
    logits = tl.where((column < M)[None, :], distances * -epsilon, float("-inf"))
    largest = tl.max(logits, axis=1)
    affinity = largest + tl.log(tl.sum(tl.exp(logits - largest[:, None]), axis=1))
    return logits, affinity, norm, exact, nearest


@triton.jit
def keep_for_backward(kept, image, row, N, affinity, norm, exact, nearest):
    """Write the four numbers a token that the backward pass needs: ``kept`` begins with [B, 4, N]."""
    base = kept + image * 4 * N + row
    tl.store(base, affinity, mask=row < N)
    tl.store(base + N, norm, mask=row < N)
    tl.store(base + 2 * N, exact, mask=row < N)
    # A float32 holds every prototype's number exactly, so one tensor serves.
    tl.store(base + 3 * N, nearest.to(tl.float32), mask=row < N)
