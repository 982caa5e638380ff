"""The backward pass over one tile of tokens: distances again, then the chain rule, then both gradients."""

# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

import triton
import triton.language as tl

from gspool.functional.kernels.affinity import tile_rows
from gspool.functional.kernels.image_gradient import image_means
from gspool.functional.kernels.measure import (
    known_multiple,
    multiply_accumulate,
    offset_piece,
    read_tokens,
    refined_distances,
    squared_distances,
)
from gspool.functional.kernels.root import log_slope, read_mu, sigmoid
from gspool.functional.kernels.spread_gradient import add_near_gradient, add_to_sums, spread_gradient

# The square root of float32's rounding: below this distance, rounding would point a pull anywhere.
SHORTEST_USEFUL = tl.constexpr(3.4526698e-4)
# 8 float32 roundings: an offset of that size, as k-center initialisation leaves it, has no direction worth following.
MERE_ROUNDING = tl.constexpr(9.5367432e-7)


@triton.jit
def near_products(
    tokens, row_offset, real, stride_d, prototypes, w_norms, nearest, scale, D, BN: tl.constexpr, BD: tl.constexpr
):
    """Multiply each token with its offset from the nearest prototype, without the cancellation of a difference."""
    w_scale = 1.0 / tl.maximum(tl.load(w_norms + nearest), 1.0)
    total = tl.zeros([BN, BD], dtype=tl.float32)
    for start in range(0, D, BD):
        channel = start + tl.arange(0, BD)
        f, offset = offset_piece(tokens, row_offset, real, stride_d, prototypes, nearest, w_scale, scale, channel, D)
        total += f * offset
    return tl.sum(total, axis=1)


@triton.jit
def clear_sums(accumulated, length):
    """Set the sums to zero, each program its part; what adds to them is launched later."""
    start = tl.program_id(0) * 1024
    while start < length:
        entry = start + tl.arange(0, 1024)
        tl.store(accumulated + entry, tl.zeros([1024], dtype=tl.float32), mask=entry < length)
        start += tl.num_programs(0) * 1024


@triton.jit
def pool_backward_kernel(
    tokens, prototypes, clipped, kept, mask, mu, epsilon, grad_pooled, grad_weights, grad_attributes,
    grad_tokens, accumulated, factors, grad_mu, grad_epsilon,
    mu_value, rest_value, epsilon_value,
    N, M, D, T, works, stride_b, stride_n, stride_d, stride_mb, stride_mn, summary_at, norms_at, stride_summary,
    grad_stride_b, grad_stride_n, grad_stride_d,
    BN: tl.constexpr, BM: tl.constexpr, BD: tl.constexpr, BS: tl.constexpr, BV: tl.constexpr,
    PRECISION: tl.constexpr, GRADIENT_PRECISION: tl.constexpr, PARTS: tl.constexpr, OPERAND: tl.constexpr,
    STAGES: tl.constexpr,
    HAS_MASK: tl.constexpr, HAS_MU: tl.constexpr, HAS_EPSILON: tl.constexpr, HAS_GW: tl.constexpr,
    HAS_GA: tl.constexpr, BACKGROUND: tl.constexpr, WHOLE: tl.constexpr, ATOMIC: tl.constexpr,
    TOKENS: tl.constexpr, PROTOTYPES: tl.constexpr, MU: tl.constexpr, EPSILON: tl.constexpr, SLICED: tl.constexpr,
    ONCE: tl.constexpr, N_HINT: tl.constexpr, D_HINT: tl.constexpr, GRAD_HINT: tl.constexpr,
):  # fmt: skip
    """Differentiate tile after tile; each program adds to its own sums unless additions may be atomic.

    ``SLICED`` leaves both products, and so both gradients, to `gradient_slices`: the pulls are written to where the
    tokens' gradient will stand, and what else a token needs to ``factors``.
    """
    N = known_multiple(N, N_HINT)
    stride_d = known_multiple(stride_d, D_HINT)
    grad_stride_d = known_multiple(grad_stride_d, GRAD_HINT)
    sharpness = tl.load(epsilon).to(tl.float32) if HAS_EPSILON else epsilon_value
    column = tl.arange(0, BM)
    w_norms = kept + norms_at
    w_norm = tl.load(w_norms + column, mask=column < M, other=0.0)
    if SLICED:
        if PROTOTYPES and ATOMIC:
            clear_sums(accumulated, M * D + M)
    elif PROTOTYPES and not ATOMIC:
        accumulated += tl.program_id(0).to(tl.int64) * (M * D + M)
    # Where there is a program for every tile, the compiler shall know: what it need not keep for a next one is free.
    stop = tl.program_id(0) + 1 if ONCE else works
    step = 1 if ONCE else tl.num_programs(0)
    for work in range(tl.program_id(0), stop, step):
        image = (work // T).to(tl.int64)
        row, real = tile_rows(work % T, N, mask, image, stride_mb, stride_mn, BN, HAS_MASK)
        row_offset = row * stride_n
        image_tokens = tokens + image * stride_b
        base = kept + image * 4 * N + row
        affinity = tl.load(base, mask=real, other=0.0)
        norm = tl.load(base + N, mask=real, other=0.0)
        exact = tl.load(base + 2 * N, mask=real, other=-1.0)
        nearest = tl.load(base + 3 * N, mask=real, other=0.0).to(tl.int32)
        scale = 1.0 / tl.maximum(norm, 1.0)
        head = kept + summary_at + image * stride_summary
        count = tl.maximum(tl.load(head + 5), 1.0)
        share, rest = read_mu(mu, image, mu_value, rest_value, HAS_MU)
        position = (affinity - tl.load(head + 1)) + tl.load(head)
        mass = tl.where(real, sigmoid(position), 0.0) / tl.maximum(tl.load(head + 2), 1.1754944e-38)
        weight = mass
        if BACKGROUND:
            weight = tl.where(real, sigmoid(-position), 0.0) / tl.maximum(tl.load(head + 3), 1.1754944e-38)

        # The distances once more, and how much the loss wants each token in the sum.
        product = tl.zeros([BN, BM], dtype=tl.float32)
        wanted = tl.zeros([BN, BD], dtype=tl.float32)
        for start in tl.range(0, D, BD, num_stages=STAGES):
            channel = start + tl.arange(0, BD)
            f = read_tokens(image_tokens, row_offset, real, channel, stride_d, D)
            product = multiply_accumulate(f, clipped, column, channel, product, M, D, BN, BM, PRECISION, PARTS)
            g = tl.load(grad_pooled + image * D + channel, mask=channel < D, other=0.0).to(tl.float32)
            wanted += f.to(tl.float32) * g[None, :]
        squared = squared_distances(product, norm, w_norm, column, M)
        distances = refined_distances(squared, tl.min(squared, axis=1), exact)
        present = real[:, None] & (column < M)[None, :]
        distances = tl.where(present, distances, 1.0)
        assignment = tl.where(present, tl.exp(distances * -sharpness - affinity[:, None]), 0.0)

        # To the shares a_j, through the root (Prop. 4.3, corrected), to the logits -epsilon c_ij.
        to_weight = tl.sum(wanted, axis=1)
        if HAS_GW:
            to_weight += tl.load(grad_weights + image * N + row, mask=real, other=0.0)
        by_weight = -to_weight / rest if BACKGROUND else to_weight / share
        to_shares = by_weight
        to_mass = tl.zeros([BN], dtype=tl.float32)
        if HAS_GA:
            to_attributes = tl.load(grad_attributes + image * M + column, mask=column < M, other=0.0)
            to_mass = tl.sum(assignment * to_attributes[None, :], axis=1)
            to_shares += to_mass / share
        slope = log_slope(position)
        if WHOLE:
            normalised_slope = tl.where(real, tl.exp(slope - tl.load(head + 4)), 0.0)
            mean = tl.sum(normalised_slope * to_shares, axis=0) / count
            spent = tl.sum(weight * by_weight + mass * (to_mass / share), axis=0)
        else:
            mean, spent = image_means(
                head, grad_pooled, grad_weights, grad_attributes, kept, mask, image, share, rest, count,
                N, M, D, stride_mb, stride_mn, BM, BV, HAS_MASK, HAS_GW, HAS_GA, BACKGROUND, MU,
            )  # fmt: skip
        if MU:  # noqa: SIM102  one is known to the compiler, the other is not
            if work % T == 0:
                tl.store(grad_mu + image, (count * mean - spent).to(grad_mu.dtype.element_ty))
        own = tl.where(real, tl.exp(slope) * (to_shares / count - mean), 0.0) - mass * to_mass
        grad_logits = own[:, None] * assignment
        if HAS_GA:
            grad_logits += mass[:, None] * to_attributes[None, :] * assignment
        if EPSILON:
            tl.store(grad_epsilon + work, -tl.sum(tl.sum(grad_logits * distances, axis=1), axis=0))

        # To pulls along f - w; the one towards a close prototype goes its own way.
        pull = grad_logits * (scale * -sharpness)[:, None] / tl.maximum(distances, SHORTEST_USEFUL)
        near_pull = tl.zeros([BN], dtype=tl.float32)
        toward_near = tl.zeros([BN], dtype=tl.float32)
        close = tl.max(exact, axis=0) >= 0.0
        if close:
            is_near = (column[None, :] == nearest[:, None]) & (exact >= 0.0)[:, None]
            strength = tl.sum(tl.where(is_near, pull, 0.0), axis=1) * tl.maximum(exact, SHORTEST_USEFUL)
            near_pull = tl.where(exact > MERE_ROUNDING, strength / tl.maximum(exact, MERE_ROUNDING), 0.0)
            pull = tl.where(is_near, 0.0, pull)
            toward_near = near_pull * near_products(
                image_tokens, row_offset, real, stride_d, prototypes, w_norms, nearest, scale, D, BN, BD
            )
        total = tl.sum(pull, axis=1) * scale
        toward = toward_near - tl.sum(pull * product, axis=1)
        # Clipping projects the gradient to the sphere: what points along the token has no effect on where it ends.
        length = norm * scale
        along = toward * (scale * scale) + total * (length * length)
        own_factor = total - tl.where(norm > 1.0, along, 0.0)

        # Rows that do not exist keep their offsets: any other number there would keep the stores from being wide.
        grad_row_offset, there = row * grad_stride_n, row < N
        # There is no memory for a gradient that nobody wants.
        image_grad = grad_tokens + image * grad_stride_b if TOKENS else None
        if SLICED:
            address = image_grad + grad_row_offset[:, None] + column[None, :] * grad_stride_d
            tl.store(address, pull.to(grad_tokens.dtype.element_ty), mask=there[:, None] & (column < M)[None, :])
            tl.store(factors + image * 2 * N + row, own_factor, mask=row < N)
            tl.store(factors + image * 2 * N + N + row, near_pull, mask=row < N)
        else:
            spread_gradient(
                image_tokens, row_offset, real, stride_d, clipped, grad_pooled + image * D,
                image_grad, grad_row_offset, there, grad_stride_d, accumulated, work, pull, weight, own_factor, M, D,
                BM, BS, GRADIENT_PRECISION, OPERAND, STAGES, ATOMIC, TOKENS, PROTOTYPES,
            )  # fmt: skip
            if close:
                add_near_gradient(
                    image_tokens, row_offset, real, stride_d, prototypes, w_norms, image_grad, grad_row_offset, there,
                    grad_stride_d, accumulated, scale, nearest, near_pull, M, D,
                    BM, BS, GRADIENT_PRECISION, OPERAND, ATOMIC, TOKENS, PROTOTYPES,
                )  # fmt: skip
            if PROTOTYPES:
                pulls = tl.sum(pull / scale[:, None], axis=0)
                add_to_sums(accumulated + M * D + column, pulls, column < M, ATOMIC)
                if not ATOMIC:
                    # The next tile reads what this one wrote.
                    tl.debug_barrier()
