"""The forward pass of `gsp_pool`: one kernel for an image that fits a tile, three for larger ones.

Tokens are summed by weight as a small matrix product, or by adding up over the tile. Where the channels of a token lie
side by side, a sum over tokens crosses all warps, in every step of a loop over the channels. A matrix product does not;
what it takes is digits. So the weights are written as parts that the matrix unit holds without loss, one row each, and
the rows of the product are added.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

import triton
import triton.language as tl

from gspool.functional.kernels.distance import (
    dot,
    keep_tokens,
    known_multiple,
    multiply_accumulate,
    read_tokens,
    refined_distances,
    squared_distances,
    tile_affinity,
    tile_rows,
    token_rows,
)
from gspool.functional.kernels.plan import AFFINITY, EXACT, IMAGE_ENTRIES, LOG_SLOPES, NORM, TINY
from gspool.functional.kernels.solve import (
    log_slope,
    mass_of,
    position_of,
    read_mu,
    sigmoid,
    solve_in_registers,
    store_image,
    weight_of,
)

# A matrix unit takes 16 rows at least: three parts of one weight stand in the first half, of another in the second.
ROWS = tl.constexpr(16)


@triton.jit
def leading_part(numbers, HALF: tl.constexpr):
    """Round float32 numbers to what one operand of the matrix unit holds: bfloat16, or the 11 digits of TF32."""
    if HALF:
        return numbers.to(tl.bfloat16).to(tl.float32)
    else:
        bits = numbers.to(tl.int32, bitcast=True)
        return ((bits + 0x1000) & -0x2000).to(tl.float32, bitcast=True)


@triton.jit
def weight_rows(weight, other, OPERAND: tl.constexpr):
    """Write two weights of each token as rows [16, tokens] of parts that add up to them to the last digit."""
    row = tl.arange(0, ROWS)[:, None]
    whole = tl.where(row < ROWS // 2, weight[None, :], other[None, :])
    first = leading_part(whole, OPERAND == "bf16")
    rest = whole - first
    second = leading_part(rest, OPERAND == "bf16")
    third = leading_part(rest - second, OPERAND == "bf16")
    place = row % (ROWS // 2)
    parts = tl.where(place == 0, first, tl.where(place == 1, second, tl.where(place == 2, third, 0.0)))
    return parts.to(tl.bfloat16) if OPERAND == "bf16" else parts


@triton.jit
def sums_by_product(rows, f, BD: tl.constexpr, OPERAND: tl.constexpr):
    """Sum a piece of the tokens by both weights: [2, channels]."""
    sums = tl.zeros([ROWS, BD], dtype=tl.float32)
    if OPERAND == "fp32":
        # Rounded to nearest, two parts of a token leave no more than float32's own rounding.
        high = leading_part(f, False)
        sums = dot(rows, high, sums, "tf32")
        sums = dot(rows, leading_part(f - high, False), sums, "tf32")
    else:
        sums = dot(rows, f, sums, "tf32")
    return tl.sum(tl.reshape(sums, [2, ROWS // 2, BD]), axis=1)


@triton.jit
def whole_image_kernel(
    tokens, prototypes, clipped, kept, mask, mu, epsilon, pooled, weights, attributes,
    mu_value, rest_value, epsilon_value,
    N, M, D, stride_b, stride_n, stride_d, stride_mb, stride_mn, images_at, norms_at,
    BN: tl.constexpr, BM: tl.constexpr, BD: tl.constexpr,
    PRECISION: tl.constexpr, PARTS: tl.constexpr, STAGES: tl.constexpr,
    HAS_MASK: tl.constexpr, HAS_MU: tl.constexpr, HAS_EPSILON: tl.constexpr,
    BACKGROUND: tl.constexpr, KEEP: tl.constexpr, OPERAND: tl.constexpr, SUMS: tl.constexpr,
    N_HINT: tl.constexpr, D_HINT: tl.constexpr,
):  # fmt: skip
    """Pool one image that fits a tile: tokens are read from memory once."""
    # An address: int32 wraps silently past 2**31 elements.
    image = tl.program_id(0).to(tl.int64)
    N = known_multiple(N, N_HINT)
    stride_d = known_multiple(stride_d, D_HINT)
    sharpness = tl.load(epsilon).to(tl.float32) if HAS_EPSILON else epsilon_value
    share, rest = read_mu(mu, image, mu_value, rest_value, HAS_MU)
    row, real = tile_rows(0, N, mask, image, stride_mb, stride_mn, BN, HAS_MASK)
    row_offset = row * stride_n
    tokens += image * stride_b
    logits, affinity, norm, exact, nearest = tile_affinity(
        tokens, row_offset, real, stride_d, prototypes, clipped, kept + norms_at, sharpness, M, D,
        BN, BM, BD, PRECISION, PARTS, STAGES,
    )  # fmt: skip

    count = tl.sum(real.to(tl.float32), axis=0)
    tau, centre = solve_in_registers(affinity, real, tl.maximum(count, 1.0), share, rest)
    position = (affinity - centre) + tau
    given = tl.where(real, sigmoid(position), 0.0)
    held = tl.where(real, sigmoid(-position), 0.0)
    mass = given / tl.maximum(tl.sum(given, axis=0), TINY)
    weight = held / tl.maximum(tl.sum(held, axis=0), TINY) if BACKGROUND else mass
    tl.store(weights + image * N + row, weight, mask=row < N)

    column = tl.arange(0, BM)
    assignment = tl.exp(logits - affinity[:, None])
    tl.store(attributes + image * M + column, tl.sum(mass[:, None] * assignment, axis=0), mask=column < M)
    if KEEP > 0:
        keep_tokens(kept, image, row, N, affinity, norm, exact, nearest)
        slope = tl.where(real, log_slope(position), float("-inf"))
        steepest = tl.max(tl.where(real, slope, -1e30), axis=0)
        log_slopes = steepest + tl.log(tl.maximum(tl.sum(tl.exp(slope - steepest), axis=0), TINY))
        store_image(
            kept + images_at + image * IMAGE_ENTRIES,
            tau, centre, tl.sum(given, axis=0), tl.sum(held, axis=0), log_slopes, count,
        )  # fmt: skip

    if SUMS == "product":
        rows = weight_rows(weight, weight, OPERAND)
        half = tl.arange(0, 2)[:, None]
    for start in tl.range(0, D, BD, num_stages=STAGES):
        channel = start + tl.arange(0, BD)
        f = read_tokens(tokens, row_offset, real, channel, stride_d, D)
        if SUMS == "product":
            total = sums_by_product(rows, f, BD, OPERAND).to(pooled.dtype.element_ty)
            # Both halves hold the same sums, and one is enough.
            tl.store(pooled + image * D + channel[None, :] + half * 0, total, mask=(channel < D)[None, :] & (half == 0))
        else:
            total = tl.sum(f.to(tl.float32) * weight[:, None], axis=0)
            tl.store(pooled + image * D + channel, total.to(pooled.dtype.element_ty), mask=channel < D)


@triton.jit
def tile_affinity_kernel(
    tokens, prototypes, clipped, kept, mask, epsilon, epsilon_value,
    N, M, D, T, stride_b, stride_n, stride_d, stride_mb, stride_mn, norms_at,
    BN: tl.constexpr, BM: tl.constexpr, BD: tl.constexpr,
    PRECISION: tl.constexpr, PARTS: tl.constexpr, STAGES: tl.constexpr,
    HAS_MASK: tl.constexpr, HAS_EPSILON: tl.constexpr, N_HINT: tl.constexpr, D_HINT: tl.constexpr,
):  # fmt: skip
    """Write the log-affinities of one tile of one image; `solve.image_shares_kernel` then solves the image."""
    image = (tl.program_id(0) // T).to(tl.int64)
    N = known_multiple(N, N_HINT)
    stride_d = known_multiple(stride_d, D_HINT)
    sharpness = tl.load(epsilon).to(tl.float32) if HAS_EPSILON else epsilon_value
    row, real = tile_rows(tl.program_id(0) % T, N, mask, image, stride_mb, stride_mn, BN, HAS_MASK)
    _, affinity, norm, exact, nearest = tile_affinity(
        tokens + image * stride_b, row * stride_n, real, stride_d, prototypes, clipped, kept + norms_at, sharpness,
        M, D, BN, BM, BD, PRECISION, PARTS, STAGES,
    )  # fmt: skip
    keep_tokens(kept, image, row, N, affinity, norm, exact, nearest)


@triton.jit
def tile_sums_kernel(
    tokens, clipped, kept, mask, epsilon, partial, epsilon_value,
    N, M, D, T, stride_b, stride_n, stride_d, stride_mb, stride_mn, images_at, norms_at, image_stride,
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
    base = token_rows(kept, image, row, N)
    affinity = tl.load(base + AFFINITY * N, mask=real, other=0.0)
    norm = tl.load(base + NORM * N, mask=real, other=0.0)
    exact = tl.load(base + EXACT * N, mask=real, other=-1.0)
    entries = kept + images_at + image * image_stride
    position = position_of(affinity, entries)
    mass = mass_of(position, real, entries)
    weight = weight_of(position, real, entries, True) if BACKGROUND else mass
    slope = tl.where(real, tl.exp(log_slope(position) - tl.load(entries + LOG_SLOPES)), 0.0)

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
    distances = refined_distances(squared, tl.min(squared, axis=1), exact, norm)
    logits = tl.where((column < M)[None, :], distances * -sharpness, float("-inf"))
    assignment = tl.exp(logits - affinity[:, None])
    tl.store(partial + D + column, tl.sum(assignment * mass[:, None], axis=0), mask=column < M)
    if KEEP > 0:
        tl.store(partial + 2 * D + M + column, tl.sum(assignment * slope[:, None], axis=0), mask=column < M)


@triton.jit
def image_sums_kernel(
    partial, pooled, attributes, kept, D, M, T, images_at, image_stride, BLOCK: tl.constexpr, KEEP: tl.constexpr
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
    sums = kept + images_at + image * image_stride + IMAGE_ENTRIES
    if KEEP > 0:
        tl.store(sums + entry - (D + M), total, mask=(entry >= D + M) & (entry < length))
    if KEEP > 1:
        tl.store(sums + D + M + entry, total, mask=entry < D + M)
