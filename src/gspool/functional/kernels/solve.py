"""The threshold of an image inside a kernel: Newton's method, kept in a bracket, until it has converged.

Solves ``mean_j sigmoid(tau + l_j) = mu`` on the same mirrored problem as the plain version: a mean above 1/2 is solved
as ``1 - mu`` with the signs turned, which keeps the digits of the smaller mass. The plain version does a fixed amount
of work because compilers and exporters need that; a kernel may loop.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

import triton
import triton.language as tl

from gspool.functional.kernels.plan import CENTRE, COUNT, GIVEN, HELD, LOG_SLOPES, TAU, TINY

# Images up to this many tokens are solved in registers; larger ones read their log-affinities again in every step.
ONE_BLOCK = 16384
# A Newton step this short leaves an error of its square: below the rounding of the logits.
LAST_STEP = tl.constexpr(3e-4)
MOST_STEPS = tl.constexpr(80)


@triton.jit
def read_mu(mu, image, mu_value, rest_value, HAS_MU: tl.constexpr):
    """Return mu and 1 - mu of an image, each with all its float32 digits."""
    if HAS_MU:
        wide = tl.load(mu + image)
        return wide.to(tl.float32), (1.0 - wide).to(tl.float32)
    else:
        return mu_value, rest_value


@triton.jit
def sigmoid(x):
    """1 / (1 + exp(-x)) without overflow on either side."""
    small = tl.exp(-tl.abs(x))
    return tl.where(x >= 0, 1.0, small) / (1.0 + small)


@triton.jit
def log_slope(position):
    """log(a (1 - a)) of ``a = sigmoid(position)``, which does not underflow where the slope itself does."""
    small = tl.exp(-tl.abs(position))
    return -tl.abs(position) - 2.0 * tl.log(1.0 + small)


@triton.jit
def position_of(affinity, entries):
    """Return how far above the threshold of its image a token lies: so written, large log-affinities cost no digits."""
    return (affinity - tl.load(entries + CENTRE)) + tl.load(entries + TAU)


@triton.jit
def mass_of(position, real, entries):
    """Return the normalised shares that tokens give, by the sum that their image has kept."""
    return tl.where(real, sigmoid(position), 0.0) / tl.maximum(tl.load(entries + GIVEN), TINY)


@triton.jit
def weight_of(position, real, entries, BACKGROUND: tl.constexpr):
    """Return the weights of tokens: the normalised shares that they give, or that they hold."""
    if BACKGROUND:
        return tl.where(real, sigmoid(-position), 0.0) / tl.maximum(tl.load(entries + HELD), TINY)
    else:
        return mass_of(position, real, entries)


@triton.jit
def store_image(entries, tau, centre, given, held, log_slopes, count):
    """Write the numbers of an image that later kernels read."""
    tl.store(entries + TAU, tau)
    tl.store(entries + CENTRE, centre)
    tl.store(entries + GIVEN, given)
    tl.store(entries + HELD, held)
    tl.store(entries + LOG_SLOPES, log_slopes)
    tl.store(entries + COUNT, count)


@triton.jit
def first_bracket(share, rest, smallest, largest, mean):
    """Bracket the root by the extreme logits, and start where it would be if all logits were alike."""
    logit = tl.log(share) - tl.log(rest)
    low, high = logit - largest, logit - smallest
    # A hair wider, so that rounding cannot shut the root out.
    hair = 1e-3 + 1e-6 * (tl.abs(low) + tl.abs(high))
    tau = tl.minimum(tl.maximum(logit - mean, low), high)
    return low - hair, high + hair, tau


@triton.jit
def next_threshold(tau, low, high, older_step, last_step, mean, slope, share):
    """Take a Newton step on the logit of the mean, or halve the bracket where Newton leaves it or slows down."""
    low = tl.where(mean < share, tau, low)
    high = tl.where(mean < share, high, tau)
    # logit(mean) - logit(share) as log1p of their distance: no digit is lost close to the root. The quotient undoes
    # the rounding of 1 + x.
    x = (mean - share) / (share * (1.0 - mean))
    one_more = 1.0 + x
    logarithm = tl.where(one_more == 1.0, x, tl.log(one_more) * (x / tl.where(one_more == 1.0, 1.0, one_more - 1.0)))
    newton = tau - logarithm * mean * (1.0 - mean) / slope
    step = tl.abs(newton - tau)
    converged = (step < LAST_STEP) | (mean == share) | (high - low < 1e-6 * (1.0 + tl.abs(tau)))
    # Comparisons with NaN are false: a plateau without slope halves the bracket.
    useful = (newton > low) & (newton < high) & (2.0 * step <= older_step)
    middle = 0.5 * (low + high)
    following = tl.where(mean == share, tau, tl.where(useful | (step < LAST_STEP), newton, middle))
    return following, low, high, last_step, tl.abs(following - tau), converged


@triton.jit
def threshold_of(tau, sign, rest, lowest):
    """Undo the mirror. For mu = 1, a tau so large that every sigmoid is exactly 1 stands for infinity."""
    return tl.where(rest <= 0.0, 2000.0 - lowest + 1e-5 * tl.abs(lowest), tau * sign)


@triton.jit
def solve_in_registers(affinity, real, count, mu, rest):
    """Solve for one image whose log-affinities are at hand; returns tau and the centre that it refers to."""
    # An image without a real token has no largest one; any finite number will do.
    centre = tl.maximum(tl.max(tl.where(real, affinity, float("-inf")), axis=0), -1e30)
    mirrored = rest < 0.5
    share, other = tl.minimum(mu, rest), tl.maximum(mu, rest)
    sign = tl.where(mirrored, -1.0, 1.0)
    logits = tl.where(real, (affinity - centre) * sign, 0.0)
    smallest = tl.min(logits, axis=0)
    largest = tl.max(logits, axis=0)
    low, high, tau = first_bracket(share, other, smallest, largest, tl.sum(logits, axis=0) / count)
    older_step = high - low
    last_step = older_step
    converged = rest <= 0.0
    steps = 0
    while (steps < MOST_STEPS) & (converged == 0):
        given = tl.where(real, sigmoid(tau + logits), 0.0)
        mean = tl.sum(given, axis=0) / count
        slope = tl.sum(given * (1.0 - given), axis=0) / count
        tau, low, high, older_step, last_step, converged = next_threshold(
            tau, low, high, older_step, last_step, mean, slope, share
        )
        steps += 1
    lowest = tl.min(tl.where(real, affinity - centre, 0.0), axis=0)
    return threshold_of(tau, sign, rest, lowest), centre


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
    return threshold_of(tau, sign, rest, lowest - centre), centre


@triton.jit
def image_shares_kernel(
    affinities, mask, mu, images, weights, mu_value, rest_value,
    N, affinity_stride, images_at, image_stride, stride_mb, stride_mn,
    BLOCK: tl.constexpr, ONE_BLOCK: tl.constexpr, HAS_MASK: tl.constexpr, HAS_MU: tl.constexpr,
    BACKGROUND: tl.constexpr, WEIGHTS: tl.constexpr,
):  # fmt: skip
    """Solve one image whose log-affinities stand in memory; write its numbers and, if wanted, its weights."""
    image = tl.program_id(0).to(tl.int64)
    share, rest = read_mu(mu, image, mu_value, rest_value, HAS_MU)
    affinities += image * affinity_stride
    if ONE_BLOCK:
        row, real, affinity = read_affinity(affinities, mask, image, 0, N, stride_mb, stride_mn, BLOCK, HAS_MASK)
        count = tl.sum(real.to(tl.float32), axis=0)
        tau, centre = solve_in_registers(affinity, real, tl.maximum(count, 1.0), share, rest)
    else:
        tau, centre = solve_in_pieces(affinities, mask, image, N, stride_mb, stride_mn, share, rest, BLOCK, HAS_MASK)

    count = 0.0
    given_sum = 0.0
    held_sum = 0.0
    steepest = -1e30
    slope_sum = 0.0
    for start in range(0, N, BLOCK):
        row, real, affinity = read_affinity(affinities, mask, image, start, N, stride_mb, stride_mn, BLOCK, HAS_MASK)
        position = (affinity - centre) + tau
        count += tl.sum(real.to(tl.float32), axis=0)
        given_sum += tl.sum(tl.where(real, sigmoid(position), 0.0), axis=0)
        held_sum += tl.sum(tl.where(real, sigmoid(-position), 0.0), axis=0)
        slope = tl.where(real, log_slope(position), -1e30)
        higher = tl.maximum(steepest, tl.max(slope, axis=0))
        slope_sum = slope_sum * tl.exp(steepest - higher)
        slope_sum += tl.sum(tl.where(real, tl.exp(slope - higher), 0.0), axis=0)
        steepest = higher
    log_slopes = steepest + tl.log(tl.maximum(slope_sum, TINY))
    store_image(images + images_at + image * image_stride, tau, centre, given_sum, held_sum, log_slopes, count)

    if WEIGHTS:
        for start in range(0, N, BLOCK):
            row, real, affinity = read_affinity(
                affinities, mask, image, start, N, stride_mb, stride_mn, BLOCK, HAS_MASK
            )
            position = (affinity - centre) + tau
            if BACKGROUND:
                weight = sigmoid(-position) / tl.maximum(held_sum, TINY)
            else:
                weight = sigmoid(position) / tl.maximum(given_sum, TINY)
            tl.store(weights + image * N + row, tl.where(real, weight, 0.0), mask=row < N)
