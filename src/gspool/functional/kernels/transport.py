"""Kernels of `partial_transport`: the cost is given and the plan is wanted, so both stream through once or twice.

Programs work on tiles of tokens and walk over the prototypes; the threshold between them is `image_shares`.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

import triton
import triton.language as tl

from gspool.functional.kernels.affinity import tile_rows
from gspool.functional.kernels.root import log_slope, sigmoid


@triton.jit
def read_piece(matrix, start, row, M, N, stride_m, stride_n, BM: tl.constexpr, fill):
    """Load a piece [prototypes, tokens] of a matrix of one image as float32."""
    column = start + tl.arange(0, BM)
    inside = (column < M)[:, None] & (row < N)[None, :]
    values = tl.load(matrix + column[:, None] * stride_m + row[None, :] * stride_n, mask=inside, other=fill)
    return column, inside, values.to(tl.float32)


@triton.jit
def cost_affinity_kernel(
    cost, epsilon, affinities, epsilon_value, M, N, T, stride_b, stride_m, stride_n,
    BN: tl.constexpr, BM: tl.constexpr, HAS_EPSILON: tl.constexpr,
):  # fmt: skip
    """Write ``l_j = log sum_i exp(-epsilon c_ij)`` of a tile, keeping the largest term apart while summing."""
    image = (tl.program_id(0) // T).to(tl.int64)
    row = (tl.program_id(0) % T) * BN + tl.arange(0, BN)
    sharpness = tl.load(epsilon).to(tl.float32) if HAS_EPSILON else epsilon_value
    largest = tl.full([BN], -1e30, dtype=tl.float32)
    total = tl.zeros([BN], dtype=tl.float32)
    for start in range(0, M, BM):
        _, inside, values = read_piece(cost + image * stride_b, start, row, M, N, stride_m, stride_n, BM, 0.0)
        logits = tl.where(inside, values * -sharpness, float("-inf"))
        higher = tl.maximum(largest, tl.max(logits, axis=0))
        total = total * tl.exp(largest - higher) + tl.sum(tl.exp(logits - higher[None, :]), axis=0)
        largest = higher
    tl.store(affinities + image * N + row, largest + tl.log(total), mask=row < N)


@triton.jit
def plan_kernel(
    cost, mask, epsilon, affinities, summary, residual, plan, epsilon_value, M, N, T,
    stride_b, stride_m, stride_n, stride_mb, stride_mn,
    BN: tl.constexpr, BM: tl.constexpr, HAS_MASK: tl.constexpr, HAS_EPSILON: tl.constexpr,
):  # fmt: skip
    """Write residual and plan of a tile (P2)."""
    image = (tl.program_id(0) // T).to(tl.int64)
    row, real = tile_rows(tl.program_id(0) % T, N, mask, image, stride_mb, stride_mn, BN, HAS_MASK)
    sharpness = tl.load(epsilon).to(tl.float32) if HAS_EPSILON else epsilon_value
    head = summary + image * 8
    affinity = tl.load(affinities + image * N + row, mask=row < N, other=0.0)
    count = tl.maximum(tl.load(head + 5), 1.0)
    position = (affinity - tl.load(head + 1)) + tl.load(head)
    mass = tl.where(real, sigmoid(position), 0.0) / count
    tl.store(residual + image * N + row, tl.where(real, sigmoid(-position), 0.0) / count, mask=row < N)
    for start in range(0, M, BM):
        column, inside, values = read_piece(cost + image * stride_b, start, row, M, N, stride_m, stride_n, BM, 0.0)
        assignment = tl.exp(values * -sharpness - affinity[None, :])
        address = plan + image * M * N + column[:, None] * N + row[None, :]
        tl.store(address, assignment * mass[None, :], mask=inside)


@triton.jit
def plan_mean_kernel(
    cost, epsilon, affinities, grad_plan, means, epsilon_value, M, N, T, stride_b, stride_m, stride_n,
    BN: tl.constexpr, BM: tl.constexpr, HAS_EPSILON: tl.constexpr,
):  # fmt: skip
    """Write the mean of the plan's gradient over the prototypes, by assignment, for the tokens of a tile."""
    image = (tl.program_id(0) // T).to(tl.int64)
    row = (tl.program_id(0) % T) * BN + tl.arange(0, BN)
    sharpness = tl.load(epsilon).to(tl.float32) if HAS_EPSILON else epsilon_value
    affinity = tl.load(affinities + image * N + row, mask=row < N, other=0.0)
    mean = tl.zeros([BN], dtype=tl.float32)
    for start in range(0, M, BM):
        _, inside, values = read_piece(cost + image * stride_b, start, row, M, N, stride_m, stride_n, BM, 0.0)
        _, _, g = read_piece(grad_plan + image * M * N, start, row, M, N, N, 1, BM, 0.0)
        mean += tl.sum(tl.where(inside, tl.exp(values * -sharpness - affinity[None, :]) * g, 0.0), axis=0)
    tl.store(means + image * N + row, mean, mask=row < N)


@triton.jit
def root_gradient_kernel(
    affinities, mask, summary, means, grad_residual, grad_mu, N, stride_mb, stride_mn,
    BLOCK: tl.constexpr, HAS_MASK: tl.constexpr, HAS_GR: tl.constexpr,
):  # fmt: skip
    """Write the slope-weighted mean of ``dL/da_j`` of one image, which is what the root passes on to mu."""
    image = tl.program_id(0).to(tl.int64)
    head = summary + image * 8
    tau, centre, slope_total = tl.load(head), tl.load(head + 1), tl.load(head + 4)
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for start in range(0, N, BLOCK):
        row = start + tl.arange(0, BLOCK)
        real = row < N
        position = (tl.load(affinities + image * N + row, mask=real, other=0.0) - centre) + tau
        g = tl.load(means + image * N + row, mask=real, other=0.0)
        if HAS_GR:
            g -= tl.load(grad_residual + image * N + row, mask=real, other=0.0)
        if HAS_MASK:
            real = real & (tl.load(mask + image * stride_mb + row * stride_mn, mask=real, other=0) != 0)
        total += tl.where(real, tl.exp(log_slope(position) - slope_total) * g, 0.0)
    mean = tl.sum(total, axis=0)
    tl.store(head + 6, mean)
    tl.store(grad_mu + image, mean.to(grad_mu.dtype.element_ty))


@triton.jit
def cost_gradient_kernel(
    cost, mask, epsilon, affinities, summary, means, grad_residual, grad_plan, grad_cost, grad_epsilon, epsilon_value,
    M, N, T, stride_b, stride_m, stride_n, stride_mb, stride_mn,
    BN: tl.constexpr, BM: tl.constexpr, HAS_MASK: tl.constexpr, HAS_EPSILON: tl.constexpr,
    HAS_GR: tl.constexpr, HAS_GP: tl.constexpr, EPSILON: tl.constexpr,
):  # fmt: skip
    """Write the gradient of the cost for a tile (Prop. 4.3, corrected)."""
    image = (tl.program_id(0) // T).to(tl.int64)
    row, real = tile_rows(tl.program_id(0) % T, N, mask, image, stride_mb, stride_mn, BN, HAS_MASK)
    sharpness = tl.load(epsilon).to(tl.float32) if HAS_EPSILON else epsilon_value
    head = summary + image * 8
    affinity = tl.load(affinities + image * N + row, mask=row < N, other=0.0)
    count = tl.maximum(tl.load(head + 5), 1.0)
    position = (affinity - tl.load(head + 1)) + tl.load(head)
    mass = tl.where(real, sigmoid(position), 0.0) / count
    mean = tl.load(means + image * N + row, mask=row < N, other=0.0)
    to_share = mean
    if HAS_GR:
        to_share -= tl.load(grad_residual + image * N + row, mask=row < N, other=0.0)
    own = tl.where(real, tl.exp(log_slope(position)) * (to_share - tl.load(head + 6)) / count, 0.0) - mass * mean
    by_epsilon = tl.zeros([BN], dtype=tl.float32)
    for start in range(0, M, BM):
        column, inside, values = read_piece(cost + image * stride_b, start, row, M, N, stride_m, stride_n, BM, 0.0)
        inner = tl.zeros([BM, BN], dtype=tl.float32) + own[None, :]
        if HAS_GP:
            _, _, g = read_piece(grad_plan + image * M * N, start, row, M, N, N, 1, BM, 0.0)
            inner += mass[None, :] * g
        grad_logits = tl.where(inside, tl.exp(values * -sharpness - affinity[None, :]) * inner, 0.0)
        if EPSILON:
            by_epsilon -= tl.sum(grad_logits * values, axis=0)
        address = grad_cost + image * M * N + column[:, None] * N + row[None, :]
        tl.store(address, (grad_logits * -sharpness).to(grad_cost.dtype.element_ty), mask=inside)
    if EPSILON:
        tl.store(grad_epsilon + tl.program_id(0), tl.sum(by_epsilon, axis=0))
