"""The threshold and the weights of one image whose log-affinities stand in memory."""

# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

import triton
import triton.language as tl

from gspool.functional.kernels.root import (
    MOST_STEPS,
    first_bracket,
    log_slope,
    next_threshold,
    read_mu,
    sigmoid,
    solve_in_registers,
)


@triton.jit
def read_affinity(affinities, mask, image, start, N, stride_mb, stride_mn, BLOCK: tl.constexpr, HAS_MASK: tl.constexpr):
    """Load a piece of an image's log-affinities, and which of the tokens are real."""
    row = start + tl.arange(0, BLOCK)
    real = row < N
    affinity = tl.load(affinities + row, mask=real, other=0.0)
    if HAS_MASK:
        real = real & (tl.load(mask + image * stride_mb + row * stride_mn, mask=real, other=0) != 0)
    return row, real, affinity


@triton.jit
def solve_in_pieces(
    affinities, mask, image, N, stride_mb, stride_mn, mu, rest, BLOCK: tl.constexpr, HAS_MASK: tl.constexpr
):
    """Solve for an image too large for one block: the same steps, reading the log-affinities again in each."""
    centre = -1e30
    lowest = 1e30
    total = 0.0
    count = 0.0
    for start in range(0, N, BLOCK):
        _, real, affinity = read_affinity(affinities, mask, image, start, N, stride_mb, stride_mn, BLOCK, HAS_MASK)
        centre = tl.maximum(centre, tl.max(tl.where(real, affinity, -1e30), axis=0))
        lowest = tl.minimum(lowest, tl.min(tl.where(real, affinity, 1e30), axis=0))
        total += tl.sum(tl.where(real, affinity, 0.0), axis=0)
        count += tl.sum(real.to(tl.float32), axis=0)
    count = tl.maximum(count, 1.0)
    mirrored = rest < 0.5
    share, other = tl.minimum(mu, rest), tl.maximum(mu, rest)
    sign = tl.where(mirrored, -1.0, 1.0)
    smallest = tl.where(mirrored, 0.0, lowest - centre)
    largest = tl.where(mirrored, centre - lowest, 0.0)
    low, high, tau = first_bracket(share, other, smallest, largest, (total / count - centre) * sign)
    older_step = high - low
    last_step = older_step
    converged = rest <= 0.0
    steps = 0
    while (steps < MOST_STEPS) & (converged == 0):
        mass = 0.0
        slope = 0.0
        for start in range(0, N, BLOCK):
            _, real, affinity = read_affinity(affinities, mask, image, start, N, stride_mb, stride_mn, BLOCK, HAS_MASK)
            given = tl.where(real, sigmoid(tau + (affinity - centre) * sign), 0.0)
            mass += tl.sum(given, axis=0)
            slope += tl.sum(given * (1.0 - given), axis=0)
        tau, low, high, older_step, last_step, converged = next_threshold(
            tau, low, high, older_step, last_step, mass / count, slope / count, share
        )
        steps += 1
    return tl.where(rest <= 0.0, 2000.0 - (lowest - centre), tau * sign), centre


@triton.jit
def image_shares_kernel(
    affinities, mask, mu, summary, weights, mu_value, rest_value,
    N, stride_affinity, summary_at, stride_summary, stride_mb, stride_mn,
    BLOCK: tl.constexpr, ONE_BLOCK: tl.constexpr, HAS_MASK: tl.constexpr, HAS_MU: tl.constexpr,
    BACKGROUND: tl.constexpr, WEIGHTS: tl.constexpr,
):  # fmt: skip
    """Solve one image; write its threshold, sums and, if wanted, weights."""
    image = tl.program_id(0).to(tl.int64)
    share, rest = read_mu(mu, image, mu_value, rest_value, HAS_MU)
    affinities += image * stride_affinity
    if ONE_BLOCK:
        row, real, affinity = read_affinity(affinities, mask, image, 0, N, stride_mb, stride_mn, BLOCK, HAS_MASK)
        count = tl.sum(real.to(tl.float32), axis=0)
        tau, centre = solve_in_registers(affinity, real, tl.maximum(count, 1.0), share, rest)
    else:
        tau, centre = solve_in_pieces(affinities, mask, image, N, stride_mb, stride_mn, share, rest, BLOCK, HAS_MASK)

    count = 0.0
    given_sum = 0.0
    kept_sum = 0.0
    steepest = -1e30
    slope_sum = 0.0
    for start in range(0, N, BLOCK):
        row, real, affinity = read_affinity(affinities, mask, image, start, N, stride_mb, stride_mn, BLOCK, HAS_MASK)
        position = (affinity - centre) + tau
        count += tl.sum(real.to(tl.float32), axis=0)
        given_sum += tl.sum(tl.where(real, sigmoid(position), 0.0), axis=0)
        kept_sum += tl.sum(tl.where(real, sigmoid(-position), 0.0), axis=0)
        slope = tl.where(real, log_slope(position), -1e30)
        higher = tl.maximum(steepest, tl.max(slope, axis=0))
        slope_sum = slope_sum * tl.exp(steepest - higher)
        slope_sum += tl.sum(tl.where(real, tl.exp(slope - higher), 0.0), axis=0)
        steepest = higher
    head = summary + summary_at + image * stride_summary
    tl.store(head, tau)
    tl.store(head + 1, centre)
    tl.store(head + 2, given_sum)
    tl.store(head + 3, kept_sum)
    # The smallest normal number: an image without any mass stays at zero.
    tl.store(head + 4, steepest + tl.log(tl.maximum(slope_sum, 1.1754944e-38)))
    tl.store(head + 5, count)

    if WEIGHTS:
        for start in range(0, N, BLOCK):
            row, real, affinity = read_affinity(
                affinities, mask, image, start, N, stride_mb, stride_mn, BLOCK, HAS_MASK
            )
            position = (affinity - centre) + tau
            if BACKGROUND:
                weight = sigmoid(-position) / tl.maximum(kept_sum, 1.1754944e-38)
            else:
                weight = sigmoid(position) / tl.maximum(given_sum, 1.1754944e-38)
            tl.store(weights + image * N + row, tl.where(real, weight, 0.0), mask=row < N)
