"""What one image's gradient needs from all of its tokens: two sums over the image, from what the forward pass kept.

The derivative of the root (Prop. 4.3, corrected) subtracts the mean of ``dL/da_j`` over the image, weighted by the
slopes ``a_j (1 - a_j)``. Because ``dL/da_j`` is linear in the token, that mean follows from the slope-weighted sums of
tokens and assignments that the forward pass has formed, and no pass over the tokens is spent on it.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

import triton
import triton.language as tl

from gspool.functional.kernels.root import log_slope, sigmoid


@triton.jit
def image_means(
    summary, grad_pooled, grad_weights, grad_attributes, kept, mask, image, mu, rest, count,
    N, M, D, stride_mb, stride_mn, BM: tl.constexpr, BV: tl.constexpr,
    HAS_MASK: tl.constexpr, HAS_GW: tl.constexpr, HAS_GA: tl.constexpr, BACKGROUND: tl.constexpr, MU: tl.constexpr,
):  # fmt: skip
    """Give the slope-weighted mean of ``dL/da_j`` and what the outputs' explicit 1 / mu adds to the gradient of mu."""
    tau, centre = tl.load(summary), tl.load(summary + 1)
    by_slope = tl.zeros([BV], dtype=tl.float32)
    by_weight = tl.zeros([BV], dtype=tl.float32)
    for start in range(0, D, BV):
        channel = start + tl.arange(0, BV)
        g = tl.load(grad_pooled + image * D + channel, mask=channel < D, other=0.0).to(tl.float32)
        by_slope += g * tl.load(summary + 8 + channel, mask=channel < D, other=0.0)
        if MU:
            by_weight += g * tl.load(summary + 8 + D + M + channel, mask=channel < D, other=0.0)
    if HAS_GW:
        given_sum, kept_sum = tl.load(summary + 2), tl.load(summary + 3)
        for start in range(0, N, BV):
            row = start + tl.arange(0, BV)
            real = row < N
            affinity = tl.load(kept + image * 4 * N + row, mask=real, other=0.0)
            g = tl.load(grad_weights + image * N + row, mask=real, other=0.0)
            if HAS_MASK:
                real = real & (tl.load(mask + image * stride_mb + row * stride_mn, mask=real, other=0) != 0)
            position = (affinity - centre) + tau
            if BACKGROUND:
                weight = sigmoid(-position) / tl.maximum(kept_sum, 1.1754944e-38)
            else:
                weight = sigmoid(position) / tl.maximum(given_sum, 1.1754944e-38)
            by_weight += tl.where(real, weight * g, 0.0)
            by_slope += tl.where(real, tl.exp(log_slope(position) - tl.load(summary + 4)) * g, 0.0)
    per_weight = -1.0 / rest if BACKGROUND else 1.0 / mu
    mean = tl.sum(by_slope, axis=0) * per_weight
    spent = tl.sum(by_weight, axis=0) * per_weight
    if HAS_GA:
        column = tl.arange(0, BM)
        g = tl.load(grad_attributes + image * M + column, mask=column < M, other=0.0)
        slope_sum = tl.load(summary + 8 + D + column, mask=column < M, other=0.0)
        mean += tl.sum(g * slope_sum, axis=0) / mu
        if MU:
            mass_sum = tl.load(summary + 8 + 2 * D + M + column, mask=column < M, other=0.0)
            spent += tl.sum(g * mass_sum, axis=0) / mu
    return mean / count, spent
