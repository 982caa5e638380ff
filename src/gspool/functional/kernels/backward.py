"""The backward pass of `gsp_pool`: distances again, the chain rule to the pulls, then both gradients from the pulls.

`pool_backward_kernel` goes as far as the pulls between tokens and prototypes, and, for small problems, on to both
gradients. For large ones `gradient_slice_kernel` forms these: a program owns a slice of the channels and walks over
tiles of tokens, so that its part of the prototypes' gradient stays in registers all the way and is added to memory once
a program and not once a tile. The pulls [B, N, M] stand where the tokens' gradient will stand, channel i of a token
holding its pull towards prototype i: nothing of that size is allocated. The slice that overwrites them therefore runs
after all others, and within it a tile is read before it is written.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

import triton
import triton.language as tl

from gspool.functional.kernels.distance import (
    INTERPRETED,
    known_multiple,
    multiply_accumulate,
    offset_piece,
    read_prototypes,
    read_tokens,
    refined_distances,
    size_of_pair,
    squared_distances,
    tile_rows,
    token_rows,
)
from gspool.functional.kernels.plan import (
    AFFINITY,
    COUNT,
    EXACT,
    FACTOR_ROWS,
    IMAGE_ENTRIES,
    LOG_SLOPES,
    NEAR_PULL,
    NEAREST,
    NORM,
    OWN_FACTOR,
    TINY,
)
from gspool.functional.kernels.solve import log_slope, mass_of, position_of, read_mu, weight_of

# All relative to the lengths of token and prototype. The square root of float32's rounding: below this distance,
# rounding would point a pull anywhere.
SHORTEST_USEFUL = tl.constexpr(3.4526698e-4)
# 8 roundings: an offset of that size, as k-center initialisation leaves it, has no direction worth following.
MERE_ROUNDING = tl.constexpr(9.5367432e-7)
# Not relative: offsets so short that their squares underflow have no direction either.
SHORTEST_KNOWN = tl.constexpr(1.3877788e-17)


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
def to_pulls(
    gradient, factor, distances, product, tokens, row_offset, real, stride_d, prototypes, w_norms,
    nearest, norm, exact, scale, column, D, BN: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """Go from the distances to pulls along ``f - w``; the one towards a close prototype goes its own way.

    The gradient with respect to the distances, times the clip factors of the tokens, is ``gradient`` times ``factor``.
    Returned besides: the pull towards the nearest prototype, and what points along the token itself.
    """
    size = size_of_pair(norm, exact)
    least = tl.maximum(SHORTEST_USEFUL * size, SHORTEST_KNOWN)
    pull = gradient * factor[:, None] / tl.maximum(distances, least[:, None])
    near_pull = tl.zeros([BN], dtype=tl.float32)
    toward_near = tl.zeros([BN], dtype=tl.float32)
    if tl.max(exact, axis=0) >= 0.0:
        is_near = (column[None, :] == nearest[:, None]) & (exact >= 0.0)[:, None]
        strength = tl.sum(tl.where(is_near, pull, 0.0), axis=1) * tl.maximum(exact, least)
        apart = tl.maximum(MERE_ROUNDING * size, SHORTEST_KNOWN)
        near_pull = tl.where(exact > apart, strength / tl.maximum(exact, apart), 0.0)
        pull = tl.where(is_near | (distances <= SHORTEST_KNOWN), 0.0, pull)
        toward_near = near_pull * near_products(
            tokens, row_offset, real, stride_d, prototypes, w_norms, nearest, scale, D, BN, BD
        )
    total = tl.sum(pull, axis=1) * scale
    toward = toward_near - tl.sum(pull * product, axis=1)
    # Clipping projects the gradient to the sphere: what points along the token has no effect on where it ends.
    length = norm * scale
    along = (toward * scale) * scale + total * (length * length)
    return pull, near_pull, total - tl.where(norm > 1.0, along, 0.0)


@triton.jit
def image_means(
    entries, grad_pooled, grad_weights, grad_attributes, kept, mask, image, mass_factor,
    N, M, D, stride_mb, stride_mn, BM: tl.constexpr, BV: tl.constexpr,
    HAS_MASK: tl.constexpr, HAS_GW: tl.constexpr, HAS_GA: tl.constexpr, BACKGROUND: tl.constexpr, MU: tl.constexpr,
):  # fmt: skip
    """Return the means over an image of what reaches its shares: by slope, and by weight for the gradient of mu.

    The derivative of the root (Prop. 4.3, corrected) subtracts the first. Because the gradient of a share is linear in
    the token, both follow from the sums of tokens and assignments that the forward pass has formed, and no pass over
    the tokens is spent on them.
    """
    sums = entries + IMAGE_ENTRIES
    by_slope = tl.zeros([BV], dtype=tl.float32)
    by_weight = tl.zeros([BV], dtype=tl.float32)
    for start in range(0, D, BV):
        channel = start + tl.arange(0, BV)
        g = tl.load(grad_pooled + image * D + channel, mask=channel < D, other=0.0).to(tl.float32)
        by_slope += g * tl.load(sums + channel, mask=channel < D, other=0.0)
        if MU:
            by_weight += g * tl.load(sums + D + M + channel, mask=channel < D, other=0.0)
    if HAS_GW:
        for start in range(0, N, BV):
            row = start + tl.arange(0, BV)
            real = row < N
            affinity = tl.load(token_rows(kept, image, row, N) + AFFINITY * N, mask=real, other=0.0)
            g = tl.load(grad_weights + image * N + row, mask=real, other=0.0)
            if HAS_MASK:
                real = real & (tl.load(mask + image * stride_mb + row * stride_mn, mask=real, other=0) != 0)
            position = position_of(affinity, entries)
            by_weight += weight_of(position, real, entries, BACKGROUND) * g
            by_slope += tl.where(real, tl.exp(log_slope(position) - tl.load(entries + LOG_SLOPES)) * g, 0.0)
    sign = -1.0 if BACKGROUND else 1.0
    mean = tl.sum(by_slope, axis=0) * sign
    spent = tl.sum(by_weight, axis=0) * sign
    if HAS_GA:
        column = tl.arange(0, BM)
        g = tl.load(grad_attributes + image * M + column, mask=column < M, other=0.0)
        slope_sum = tl.load(sums + D + column, mask=column < M, other=0.0)
        mean += tl.sum(g * slope_sum, axis=0) * mass_factor
        if MU:
            mass_sum = tl.load(sums + 2 * D + M + column, mask=column < M, other=0.0)
            spent += tl.sum(g * mass_sum, axis=0) * mass_factor
    return mean, spent


@triton.jit
def clear_sums(accumulated, length):
    """Set the sums to zero, each program its part; what adds to them is launched later."""
    start = tl.program_id(0) * 1024
    while start < length:
        entry = start + tl.arange(0, 1024)
        tl.store(accumulated + entry, tl.zeros([1024], dtype=tl.float32), mask=entry < length)
        start += tl.num_programs(0) * 1024


@triton.jit
def multiply_gradient(a, b, PRECISION: tl.constexpr, OPERAND: tl.constexpr):
    """Multiply two float32 tiles, in bfloat16 where that is the dtype of the tokens and so of their gradient."""
    if INTERPRETED:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), input_precision="ieee")
    elif OPERAND == "bf16":
        return tl.dot(a.to(tl.bfloat16), b.to(tl.bfloat16))
    else:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), input_precision=PRECISION)


@triton.jit
def add_to_sums(address, pulled, inside, ATOMIC: tl.constexpr):
    """Add to sums shared by all programs, or to the program's own."""
    if ATOMIC:
        tl.atomic_add(address, pulled, mask=inside, sem="relaxed")
    else:
        tl.store(address, tl.load(address, mask=inside, other=0.0) + pulled, mask=inside)


@triton.jit
def spread_gradient(
    tokens, row_offset, real, stride_d, clipped, grad_pooled, grad_tokens, grad_row_offset, there, grad_stride_d,
    accumulated, turn, pull, weight, own_factor, M, D,
    BM: tl.constexpr, BD: tl.constexpr, PRECISION: tl.constexpr, OPERAND: tl.constexpr, STAGES: tl.constexpr,
    ATOMIC: tl.constexpr, TOKENS: tl.constexpr, PROTOTYPES: tl.constexpr, POOLED: tl.constexpr,
):  # fmt: skip
    """Write a tile's token gradient and add its part of the prototypes' gradient; ``there`` marks rows that exist."""
    column = tl.arange(0, BM)
    pieces = tl.cdiv(D, BD)
    for piece in tl.range(0, pieces, num_stages=STAGES):
        # Every tile starts elsewhere, so that they do not all add to the same addresses at once.
        channel = ((piece + turn) % pieces) * BD + tl.arange(0, BD)
        f = read_tokens(tokens, row_offset, real, channel, stride_d, D)
        if TOKENS:
            # Towards the prototypes, along the token itself, and from the pooled vector.
            w = read_prototypes(clipped, column, channel, M, D)
            gradient = f.to(tl.float32) * own_factor[:, None]
            if POOLED:
                g = tl.load(grad_pooled + channel, mask=channel < D, other=0.0).to(tl.float32)
                gradient += weight[:, None] * g[None, :]
            gradient -= multiply_gradient(pull, w, PRECISION, OPERAND)
            address = grad_tokens + grad_row_offset[:, None] + channel[None, :] * grad_stride_d
            inside = there[:, None] & (channel < D)[None, :]
            tl.store(address, gradient.to(grad_tokens.dtype.element_ty), mask=inside)
        if PROTOTYPES:
            pulled = multiply_gradient(tl.trans(pull), f, PRECISION, OPERAND)
            address = accumulated + column[:, None] * D + channel[None, :]
            add_to_sums(address, pulled, (column < M)[:, None] & (channel < D)[None, :], ATOMIC)


@triton.jit
def add_near_gradient(
    tokens, row_offset, real, stride_d, prototypes, w_norms, grad_tokens, grad_row_offset, there, grad_stride_d,
    accumulated, scale, nearest, near_pull, M, D,
    BM: tl.constexpr, BD: tl.constexpr, PRECISION: tl.constexpr, OPERAND: tl.constexpr,
    ATOMIC: tl.constexpr, TOKENS: tl.constexpr, PROTOTYPES: tl.constexpr,
):  # fmt: skip
    """Add the pulls of tokens towards a close prototype, along the offset itself.

    A product cannot form ``f - w`` for a token that lies on a prototype. Few tiles come here, so the loop that all
    tiles run stays free of it.
    """
    column = tl.arange(0, BM)
    near_scale = 1.0 / tl.maximum(tl.load(w_norms + nearest), 1.0)
    at_nearest = tl.where(column[:, None] == nearest[None, :], (near_pull / scale)[None, :], 0.0)
    # The loop reads gradients that other threads may have written.
    tl.debug_barrier()
    for start in range(0, D, BD):
        channel = start + tl.arange(0, BD)
        _, offset = offset_piece(tokens, row_offset, real, stride_d, prototypes, nearest, near_scale, scale, channel, D)
        if TOKENS:
            address = grad_tokens + grad_row_offset[:, None] + channel[None, :] * grad_stride_d
            inside = there[:, None] & (channel < D)[None, :]
            gradient = tl.load(address, mask=inside, other=0.0).to(tl.float32) + near_pull[:, None] * offset
            tl.store(address, gradient.to(grad_tokens.dtype.element_ty), mask=inside)
        if PROTOTYPES:
            pulled = multiply_gradient(at_nearest, offset, PRECISION, OPERAND)
            address = accumulated + column[:, None] * D + channel[None, :]
            add_to_sums(address, pulled, (column < M)[:, None] & (channel < D)[None, :], ATOMIC)


@triton.jit
def pool_backward_kernel(
    tokens, prototypes, clipped, kept, mask, mu, epsilon, grad_pooled, grad_weights, grad_attributes,
    grad_tokens, accumulated, factors, grad_mu, grad_epsilon,
    mu_value, rest_value, epsilon_value,
    N, M, D, T, works, stride_b, stride_n, stride_d, stride_mb, stride_mn, images_at, norms_at, image_stride,
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

    ``SLICED`` leaves both products, and so both gradients, to `gradient_slice_kernel`: the pulls are written to where
    the tokens' gradient will stand, and what else a token needs to ``factors``.
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
    # With a program for every tile, the compiler is told so: it need not keep anything for a next tile.
    stop = tl.program_id(0) + 1 if ONCE else works
    step = 1 if ONCE else tl.num_programs(0)
    for work in range(tl.program_id(0), stop, step):
        image = (work // T).to(tl.int64)
        row, real = tile_rows(work % T, N, mask, image, stride_mb, stride_mn, BN, HAS_MASK)
        row_offset = row * stride_n
        image_tokens = tokens + image * stride_b
        base = token_rows(kept, image, row, N)
        affinity = tl.load(base + AFFINITY * N, mask=real, other=0.0)
        norm = tl.load(base + NORM * N, mask=real, other=0.0)
        exact = tl.load(base + EXACT * N, mask=real, other=-1.0)
        nearest = tl.load(base + NEAREST * N, mask=real, other=0.0).to(tl.int32)
        scale = 1.0 / tl.maximum(norm, 1.0)
        entries = kept + images_at + image * image_stride
        count = tl.maximum(tl.load(entries + COUNT), 1.0)
        share, rest = read_mu(mu, image, mu_value, rest_value, HAS_MU)
        position = position_of(affinity, entries)
        mass = mass_of(position, real, entries)
        weight = weight_of(position, real, entries, True) if BACKGROUND else mass

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
        distances = refined_distances(squared, tl.min(squared, axis=1), exact, norm)
        present = real[:, None] & (column < M)[None, :]
        distances = tl.where(present, distances, 1.0)
        assignment = tl.where(present, tl.exp(distances * -sharpness - affinity[:, None]), 0.0)

        # To the shares, through the root (Prop. 4.3, corrected), to the logits -epsilon c_ij. All of it with respect
        # to a_j / (n part), part being mu or 1 - mu: shares of the size of the weights, which no mu overflows.
        part = tl.maximum(rest, TINY) if BACKGROUND else share
        mass_factor = part / share
        to_weight = tl.sum(wanted, axis=1)
        if HAS_GW:
            to_weight += tl.load(grad_weights + image * N + row, mask=real, other=0.0)
        by_weight = -to_weight if BACKGROUND else to_weight
        to_shares = by_weight
        to_mass = tl.zeros([BN], dtype=tl.float32)
        if HAS_GA:
            to_attributes = tl.load(grad_attributes + image * M + column, mask=column < M, other=0.0)
            to_mass = tl.sum(assignment * to_attributes[None, :], axis=1)
            to_shares += to_mass * mass_factor
        slope = log_slope(position)
        if WHOLE:
            normalised_slope = tl.where(real, tl.exp(slope - tl.load(entries + LOG_SLOPES)), 0.0)
            mean = tl.sum(normalised_slope * to_shares, axis=0)
            spent = tl.sum(weight * by_weight + mass * (to_mass * mass_factor), axis=0)
        else:
            mean, spent = image_means(
                entries, grad_pooled, grad_weights, grad_attributes, kept, mask, image, mass_factor,
                N, M, D, stride_mb, stride_mn, BM, BV, HAS_MASK, HAS_GW, HAS_GA, BACKGROUND, MU,
            )  # fmt: skip
        if MU:  # noqa: SIM102  one is known to the compiler, the other is not
            if work % T == 0:
                tl.store(grad_mu + image, ((mean - spent) / part).to(grad_mu.dtype.element_ty))
        relative_slope = tl.exp(slope - tl.log(count * part))
        own = tl.where(real, relative_slope * (to_shares - mean), 0.0) - mass * to_mass
        grad_logits = own[:, None] * assignment
        if HAS_GA:
            grad_logits += mass[:, None] * to_attributes[None, :] * assignment
        if EPSILON:
            tl.store(grad_epsilon + work, -tl.sum(tl.sum(grad_logits * distances, axis=1), axis=0))

        pull, near_pull, own_factor = to_pulls(
            grad_logits, scale * -sharpness, distances, product, image_tokens, row_offset, real, stride_d,
            prototypes, w_norms, nearest, norm, exact, scale, column, D, BN, BD,
        )  # fmt: skip

        # Rows that do not exist keep their offsets: any other number there would keep the stores from being wide.
        grad_row_offset, there = row * grad_stride_n, row < N
        # A gradient that is not wanted has no memory.
        image_grad = grad_tokens + image * grad_stride_b if TOKENS else None
        if SLICED:
            address = image_grad + grad_row_offset[:, None] + column[None, :] * grad_stride_d
            tl.store(address, pull.to(grad_tokens.dtype.element_ty), mask=there[:, None] & (column < M)[None, :])
            of_tokens = factors + image * FACTOR_ROWS * N + row
            tl.store(of_tokens + OWN_FACTOR * N, own_factor, mask=row < N)
            tl.store(of_tokens + NEAR_PULL * N, near_pull, mask=row < N)
        else:
            spread_gradient(
                image_tokens, row_offset, real, stride_d, clipped, grad_pooled + image * D,
                image_grad, grad_row_offset, there, grad_stride_d, accumulated, work, pull, weight, own_factor, M, D,
                BM, BS, GRADIENT_PRECISION, OPERAND, STAGES, ATOMIC, TOKENS, PROTOTYPES, True,
            )  # fmt: skip
            if tl.max(exact, axis=0) >= 0.0:
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


@triton.jit
def collect(a, b, total, D, PRECISION: tl.constexpr, OPERAND: tl.constexpr):
    """Add ``a @ b`` to sums that live longer than the loop."""
    if INTERPRETED:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), total, input_precision="ieee")
    elif PRECISION == "tf32x3":
        # The halves of both operands are copies, which no load that runs ahead can overwrite.
        return tl.dot(a, b, total, input_precision=PRECISION)
    elif OPERAND == "bf16":
        total = tl.dot(a.to(tl.bfloat16), b.to(tl.bfloat16), total)
    else:
        total = tl.dot(a.to(tl.float32), b.to(tl.float32), total, input_precision=PRECISION)
    # Times a 1 that the compiler does not know, so that it waits for the product, as in `multiply_accumulate`.
    return total * tl.where(D > 0, 1.0, 2.0)


@triton.jit
def add_or_write(address, values, inside, ATOMIC: tl.constexpr):
    """Add to sums shared by all programs, or write the program's own."""
    if ATOMIC:
        tl.atomic_add(address, values, mask=inside, sem="relaxed")
    else:
        tl.store(address, values, mask=inside)


@triton.jit
def gradient_slice_kernel(
    tokens, clipped, kept, mask, grad_pooled, grad_tokens, factors, accumulated,
    N, M, D, T, works, first, slices, splits, stride_b, stride_n, stride_d, stride_mb, stride_mn,
    images_at, image_stride, grad_stride_b, grad_stride_n, grad_stride_d,
    BN: tl.constexpr, BM: tl.constexpr, BS: tl.constexpr, PRECISION: tl.constexpr, OPERAND: tl.constexpr,
    STAGES: tl.constexpr, HAS_MASK: tl.constexpr, BACKGROUND: tl.constexpr, ATOMIC: tl.constexpr,
    PROTOTYPES: tl.constexpr, COUNT_PULLS: tl.constexpr,
    N_HINT: tl.constexpr, D_HINT: tl.constexpr, GRAD_HINT: tl.constexpr,
):  # fmt: skip
    """Write a slice of the tokens' gradient, and add or write the same slice of the prototypes' gradient."""
    N = known_multiple(N, N_HINT)
    stride_d = known_multiple(stride_d, D_HINT)
    grad_stride_d = known_multiple(grad_stride_d, GRAD_HINT)
    # Slices of the same tiles run side by side, and find the pulls in the cache.
    split = tl.program_id(0) // slices
    column = tl.arange(0, BM)
    channel = (first + tl.program_id(0) % slices) * BS + tl.arange(0, BS)
    w = read_prototypes(clipped, column, channel, M, D)
    collected = tl.zeros([BM, BS], dtype=tl.float32)
    pulls = tl.zeros([BM], dtype=tl.float32)
    for work in tl.range(split, works, splits, num_stages=STAGES):
        image = (work // T).to(tl.int64)
        row, real = tile_rows(work % T, N, mask, image, stride_mb, stride_mn, BN, HAS_MASK)
        grad_row = grad_tokens + image * grad_stride_b + row[:, None] * grad_stride_n
        there = (row < N)[:, None]
        pull = tl.load(grad_row + column[None, :] * grad_stride_d, mask=there & (column < M)[None, :], other=0.0)
        f = read_tokens(tokens + image * stride_b, row * stride_n, real, channel, stride_d, D)

        base = token_rows(kept, image, row, N)
        affinity = tl.load(base + AFFINITY * N, mask=real, other=0.0)
        entries = kept + images_at + image * image_stride
        weight = weight_of(position_of(affinity, entries), real, entries, BACKGROUND)
        own_factor = tl.load(factors + image * FACTOR_ROWS * N + OWN_FACTOR * N + row, mask=row < N, other=0.0)
        g = tl.load(grad_pooled + image * D + channel, mask=channel < D, other=0.0).to(tl.float32)

        if PROTOTYPES:
            collected = collect(tl.trans(pull), f, collected, D, PRECISION, OPERAND)
            if COUNT_PULLS:
                norm = tl.load(base + NORM * N, mask=real, other=0.0)
                pulls += tl.sum(pull.to(tl.float32) * tl.maximum(norm, 1.0)[:, None], axis=0)
        gradient = f.to(tl.float32) * own_factor[:, None] + weight[:, None] * g[None, :]
        gradient -= multiply_gradient(pull, w, PRECISION, OPERAND)
        address = grad_row + channel[None, :] * grad_stride_d
        tl.store(address, gradient.to(grad_tokens.dtype.element_ty), mask=there & (channel < D)[None, :])
    if PROTOTYPES:
        if not ATOMIC:
            accumulated += split.to(tl.int64) * (M * D + M)
        address = accumulated + column[:, None] * D + channel[None, :]
        inside = (column < M)[:, None] & (channel < D)[None, :]
        add_or_write(address, collected, inside, ATOMIC)
        if COUNT_PULLS:
            add_or_write(accumulated + M * D + column, pulls, column < M, ATOMIC)


@triton.jit
def near_gradient_kernel(
    tokens, prototypes, kept, mask, grad_tokens, factors, accumulated,
    N, M, D, T, works, stride_b, stride_n, stride_d, stride_mb, stride_mn, norms_at,
    grad_stride_b, grad_stride_n, grad_stride_d,
    BN: tl.constexpr, BM: tl.constexpr, BS: tl.constexpr, PRECISION: tl.constexpr, OPERAND: tl.constexpr,
    HAS_MASK: tl.constexpr, ATOMIC: tl.constexpr, PROTOTYPES: tl.constexpr,
):  # fmt: skip
    """Add the pulls towards close prototypes to gradients that are otherwise complete; most tiles have none."""
    if PROTOTYPES and not ATOMIC:
        accumulated += tl.program_id(0).to(tl.int64) * (M * D + M)
    for work in range(tl.program_id(0), works, tl.num_programs(0)):
        image = (work // T).to(tl.int64)
        row, real = tile_rows(work % T, N, mask, image, stride_mb, stride_mn, BN, HAS_MASK)
        near_pull = tl.load(factors + image * FACTOR_ROWS * N + NEAR_PULL * N + row, mask=real, other=0.0)
        if tl.max(tl.abs(near_pull), axis=0) > 0.0:
            base = token_rows(kept, image, row, N)
            norm = tl.load(base + NORM * N, mask=real, other=0.0)
            nearest = tl.load(base + NEAREST * N, mask=real, other=0.0).to(tl.int32)
            add_near_gradient(
                tokens + image * stride_b, row * stride_n, real, stride_d, prototypes, kept + norms_at,
                grad_tokens + image * grad_stride_b, row * grad_stride_n, row < N, grad_stride_d,
                accumulated, 1.0 / tl.maximum(norm, 1.0), nearest, near_pull, M, D,
                BM, BS, PRECISION, OPERAND, ATOMIC, True, PROTOTYPES,
            )  # fmt: skip
            if not ATOMIC:
                # The next tile reads what this one wrote.
                tl.debug_barrier()


@triton.jit
def raw_gradient(prototypes, accumulated, column, channel, pulls, w_scale, M, D, parts):
    """Return a piece of one clipped prototype and of the gradient with respect to it."""
    inside = channel < D
    clipped = tl.load(prototypes + column * D + channel, mask=inside, other=0.0).to(tl.float32) * w_scale
    total = tl.zeros_like(clipped)
    for _ in range(0, parts):
        total += tl.load(accumulated + column * D + channel, mask=inside, other=0.0)
        # A step of the address itself: part * size would wrap silently past 2**31 elements.
        accumulated += M * D + M
    return clipped, clipped * pulls - total


@triton.jit
def prototype_gradient_kernel(
    prototypes, kept, accumulated, gradient, norms_at, M, D, parts, BD: tl.constexpr, BP: tl.constexpr
):
    """Add up the programs' sums for one prototype and go through its clipping.

    ``gradient`` may be the memory of ``accumulated`` itself.
    """
    column = tl.program_id(0)
    w_norm = tl.load(kept + norms_at + column)
    w_scale = 1.0 / tl.maximum(w_norm, 1.0)
    each_pull = tl.zeros([BP], dtype=tl.float32)
    for start in range(0, parts, BP):
        part = (start + tl.arange(0, BP)).to(tl.int64)
        each_pull += tl.load(accumulated + part * (M * D + M) + M * D + column, mask=part < parts, other=0.0)
    pulls = tl.sum(each_pull, axis=0)
    along = tl.zeros([BD], dtype=tl.float32)
    if w_norm > 1.0:
        for start in range(0, D, BD):
            channel = start + tl.arange(0, BD)
            clipped, raw = raw_gradient(prototypes, accumulated, column, channel, pulls, w_scale, M, D, parts)
            along += clipped * raw
    outward = tl.sum(along, axis=0)
    for start in range(0, D, BD):
        channel = start + tl.arange(0, BD)
        clipped, raw = raw_gradient(prototypes, accumulated, column, channel, pulls, w_scale, M, D, parts)
        result = (raw - clipped * outward) * w_scale
        tl.store(gradient + column * D + channel, result.to(gradient.dtype.element_ty), mask=channel < D)
