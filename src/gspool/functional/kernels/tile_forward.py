"""The forward pass of images larger than a tile: log-affinities, then (between them the threshold) weighted sums."""

# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

import triton
import triton.language as tl

from gspool.functional.kernels.affinity import keep_for_backward, tile_affinity, tile_rows
from gspool.functional.kernels.measure import (
    known_multiple,
    multiply_accumulate,
    read_tokens,
    refined_distances,
    squared_distances,
)
from gspool.functional.kernels.root import log_slope, sigmoid
from gspool.functional.kernels.weighted_sums import sums_by_product, weight_rows


@triton.jit
def tile_affinity_kernel(
    tokens, prototypes, clipped, kept, mask, epsilon, epsilon_value,
    N, M, D, T, stride_b, stride_n, stride_d, stride_mb, stride_mn, norms_at,
    BN: tl.constexpr, BM: tl.constexpr, BD: tl.constexpr,
    PRECISION: tl.constexpr, PARTS: tl.constexpr, STAGES: tl.constexpr,
    HAS_MASK: tl.constexpr, HAS_EPSILON: tl.constexpr, N_HINT: tl.constexpr, D_HINT: tl.constexpr,
):  # fmt: skip
    """Write the log-affinities of one tile of one image."""
    image = (tl.program_id(0) // T).to(tl.int64)
    N = known_multiple(N, N_HINT)
    stride_d = known_multiple(stride_d, D_HINT)
    sharpness = tl.load(epsilon).to(tl.float32) if HAS_EPSILON else epsilon_value
    row, real = tile_rows(tl.program_id(0) % T, N, mask, image, stride_mb, stride_mn, BN, HAS_MASK)
    _, affinity, norm, exact, nearest = tile_affinity(
        tokens + image * stride_b, row * stride_n, real, stride_d, prototypes, clipped, kept + norms_at, sharpness,
        M, D, BN, BM, BD, PRECISION, PARTS, STAGES,
    )  # fmt: skip
    keep_for_backward(kept, image, row, N, affinity, norm, exact, nearest)


@triton.jit
def tile_sums_kernel(
    tokens, clipped, kept, mask, epsilon, partial, epsilon_value,
    N, M, D, T, stride_b, stride_n, stride_d, stride_mb, stride_mn, summary_at, norms_at, stride_summary,
    BN: tl.constexpr, BM: tl.constexpr, BD: tl.constexpr,
    PRECISION: tl.constexpr, PARTS: tl.constexpr, STAGES: tl.constexpr,
    HAS_MASK: tl.constexpr, HAS_EPSILON: tl.constexpr, BACKGROUND: tl.constexpr, KEEP: tl.constexpr,
    OPERAND: tl.constexpr, SUMS: tl.constexpr, N_HINT: tl.constexpr, D_HINT: tl.constexpr,
):  # fmt: skip
    """Sum one tile: tokens by weight and assignments by mass, and, for the backward pass, both by slope.

    The distances are formed a second time, while the tokens are at hand for their sum, because keeping them would
    take a tensor of size B x M x N.
    """
    image = (tl.program_id(0) // T).to(tl.int64)
    N = known_multiple(N, N_HINT)
    stride_d = known_multiple(stride_d, D_HINT)
    sharpness = tl.load(epsilon).to(tl.float32) if HAS_EPSILON else epsilon_value
    row, real = tile_rows(tl.program_id(0) % T, N, mask, image, stride_mb, stride_mn, BN, HAS_MASK)
    row_offset = row * stride_n
    tokens += image * stride_b
    base = kept + image * 4 * N + row
    affinity = tl.load(base, mask=real, other=0.0)
    norm = tl.load(base + N, mask=real, other=0.0)
    exact = tl.load(base + 2 * N, mask=real, other=-1.0)
    head = kept + summary_at + image * stride_summary
    position = (affinity - tl.load(head + 1)) + tl.load(head)
    mass = tl.where(real, sigmoid(position), 0.0) / tl.maximum(tl.load(head + 2), 1.1754944e-38)
    weight = mass
    if BACKGROUND:
        weight = tl.where(real, sigmoid(-position), 0.0) / tl.maximum(tl.load(head + 3), 1.1754944e-38)
    slope = tl.where(real, tl.exp(log_slope(position) - tl.load(head + 4)), 0.0)

    partial += tl.program_id(0).to(tl.int64) * 2 * (D + M)
    column = tl.arange(0, BM)
    w_norm = tl.load(kept + norms_at + column, mask=column < M, other=0.0)
    product = tl.zeros([BN, BM], dtype=tl.float32)
    if SUMS == "product":
        rows = weight_rows(weight, slope, OPERAND)
        half = tl.arange(0, 2)[:, None]
    for start in tl.range(0, D, BD, num_stages=STAGES):
        channel = start + tl.arange(0, BD)
        f = read_tokens(tokens, row_offset, real, channel, stride_d, D)
        product = multiply_accumulate(f, clipped, column, channel, product, M, D, BN, BM, PRECISION, PARTS)
        if SUMS == "product":
            sums = sums_by_product(rows, f, BD, OPERAND)
            inside = (channel < D)[None, :] & ((half == 0) | (KEEP > 0))
            tl.store(partial + half * (D + M) + channel[None, :], sums, mask=inside)
        else:
            wide = f.to(tl.float32)
            tl.store(partial + channel, tl.sum(wide * weight[:, None], axis=0), mask=channel < D)
            if KEEP > 0:
                tl.store(partial + D + M + channel, tl.sum(wide * slope[:, None], axis=0), mask=channel < D)

    squared = squared_distances(product, norm, w_norm, column, M)
    distances = refined_distances(squared, tl.min(squared, axis=1), exact)
    logits = tl.where((column < M)[None, :], distances * -sharpness, float("-inf"))
    assignment = tl.exp(logits - affinity[:, None])
    tl.store(partial + D + column, tl.sum(assignment * mass[:, None], axis=0), mask=column < M)
    if KEEP > 0:
        tl.store(partial + 2 * D + M + column, tl.sum(assignment * slope[:, None], axis=0), mask=column < M)


@triton.jit
def image_sums_kernel(
    partial, pooled, attributes, kept, D, M, T, summary_at, stride_summary, BLOCK: tl.constexpr, KEEP: tl.constexpr
):
    """Add up the tiles of one image, always in the same order; the sums that the backward pass needs stay float32.

    ``KEEP`` is 1 for the sums by slope, 2 for those by weight as well, which only the gradient of mu asks for.
    """
    image = tl.program_id(0).to(tl.int64)
    entry = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    length = 2 * (D + M) if KEEP > 0 else D + M
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for tile in range(0, T):
        total += tl.load(partial + (image * T + tile) * 2 * (D + M) + entry, mask=entry < length, other=0.0)
    tl.store(pooled + image * D + entry, total.to(pooled.dtype.element_ty), mask=entry < D)
    tl.store(attributes + image * M + entry - D, total, mask=(entry >= D) & (entry < D + M))
    sums = kept + summary_at + image * stride_summary + 8
    if KEEP > 0:
        tl.store(sums + entry - (D + M), total, mask=(entry >= D + M) & (entry < length))
    if KEEP > 1:
        tl.store(sums + D + M + entry, total, mask=entry < D + M)
