"""The whole forward pass in one kernel, for images that fit one tile: tokens are read from memory once."""

# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

import triton
import triton.language as tl

from gspool.functional.kernels.affinity import keep_for_backward, tile_affinity, tile_rows
from gspool.functional.kernels.measure import known_multiple, read_tokens
from gspool.functional.kernels.root import log_slope, read_mu, sigmoid, solve_in_registers
from gspool.functional.kernels.weighted_sums import sums_by_product, weight_rows


@triton.jit
def whole_image_kernel(
    tokens, prototypes, clipped, kept, mask, mu, epsilon, pooled, weights, attributes,
    mu_value, rest_value, epsilon_value,
    N, M, D, stride_b, stride_n, stride_d, stride_mb, stride_mn, summary_at, norms_at,
    BN: tl.constexpr, BM: tl.constexpr, BD: tl.constexpr,
    PRECISION: tl.constexpr, PARTS: tl.constexpr, STAGES: tl.constexpr,
    HAS_MASK: tl.constexpr, HAS_MU: tl.constexpr, HAS_EPSILON: tl.constexpr,
    BACKGROUND: tl.constexpr, KEEP: tl.constexpr, OPERAND: tl.constexpr, SUMS: tl.constexpr,
    N_HINT: tl.constexpr, D_HINT: tl.constexpr,
):  # fmt: skip
    """Pool one image."""
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
    # The smallest normal number: an image without any mass stays at zero.
    mass = given / tl.maximum(tl.sum(given, axis=0), 1.1754944e-38)
    weight = held / tl.maximum(tl.sum(held, axis=0), 1.1754944e-38) if BACKGROUND else mass
    tl.store(weights + image * N + row, weight, mask=row < N)

    column = tl.arange(0, BM)
    assignment = tl.exp(logits - affinity[:, None])
    tl.store(attributes + image * M + column, tl.sum(mass[:, None] * assignment, axis=0), mask=column < M)
    if KEEP > 0:
        keep_for_backward(kept, image, row, N, affinity, norm, exact, nearest)
        slope = tl.where(real, log_slope(position), float("-inf"))
        steepest = tl.max(tl.where(real, slope, -1e30), axis=0)
        total_slope = tl.maximum(tl.sum(tl.exp(slope - steepest), axis=0), 1.1754944e-38)
        head = kept + summary_at + image * 8
        tl.store(head, tau)
        tl.store(head + 1, centre)
        tl.store(head + 2, tl.sum(given, axis=0))
        tl.store(head + 3, tl.sum(held, axis=0))
        tl.store(head + 4, steepest + tl.log(total_slope))
        tl.store(head + 5, count)

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
