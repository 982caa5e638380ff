"""The threshold of an image inside a kernel: Newton's method, kept in a bracket, until it has converged.

Solves ``mean_j sigmoid(tau + l_j) = mu`` on the same mirrored problem as the plain version: a mean above 1/2 is solved
as ``1 - mu`` with the signs turned, which keeps the small one of the two masses in plain sight. The plain version does
a fixed amount of work because compilers and exporters need that; a kernel may loop.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

import triton
import triton.language as tl

# A Newton step this short leaves an error of its square: below the rounding of the logits.
LAST_STEP = tl.constexpr(3e-4)
MOST_STEPS = tl.constexpr(80)


@triton.jit
def read_mu(mu, image, mu_value, rest_value, HAS_MU: tl.constexpr):
    """Give mu and 1 - mu of an image, each with all its float32 digits."""
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
def solve_in_registers(affinity, real, count, mu, rest):
    """Solve for one image whose log-affinities are at hand; gives tau and the centre that it refers to.

    A token's position is ``(l_j - centre) + tau``: written so, large log-affinities cost no digits.
    """
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
    # mu = 1: a tau so large that every sigmoid is exactly 1 stands for infinity.
    lowest = tl.min(tl.where(real, affinity - centre, 0.0), axis=0)
    return tl.where(rest <= 0.0, 2000.0 - lowest, tau * sign), centre
