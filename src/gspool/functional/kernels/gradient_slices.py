"""Both gradients from the pulls: a program owns a slice of the channels and walks over tiles of tokens.

The slice's part of the prototypes' gradient stays in registers all the way, so it is added to memory once a program
and not once a tile. The pulls [B, N, M] are read from where the tokens' gradient will stand, channel i of a token
holding its pull towards prototype i: nothing of that size is allocated. The slice that overwrites them therefore runs
after all others, and within it a tile is read before it is written.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

import triton
import triton.language as tl

from gspool.functional.kernels.affinity import tile_rows
from gspool.functional.kernels.measure import INTERPRETED, known_multiple, read_prototypes, read_tokens
from gspool.functional.kernels.root import sigmoid
from gspool.functional.kernels.spread_gradient import add_near_gradient, multiply_gradient


@triton.jit
def collect(a, b, total, D, PRECISION: tl.constexpr, OPERAND: tl.constexpr):
    """Add ``a @ b`` to sums that outlive the loop."""
    if INTERPRETED:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), total, input_precision="ieee")
    elif PRECISION == "tf32x3":
        # The halves of both operands are copies, which no load that runs ahead can overwrite.
        return tl.dot(a, b, total, input_precision=PRECISION)
    elif OPERAND == "bf16":
        total = tl.dot(a.to(tl.bfloat16), b.to(tl.bfloat16), total)
    else:
        total = tl.dot(a.to(tl.float32), b.to(tl.float32), total, input_precision=PRECISION)
    # Times a 1 that the compiler does not know, so that it waits for the product, as in `measure.multiply_accumulate`.
    return total * tl.where(D > 0, 1.0, 2.0)


@triton.jit
def gradient_slice_kernel(
    tokens, clipped, kept, mask, grad_pooled, grad_tokens, factors, accumulated,
    N, M, D, T, works, first, slices, splits, stride_b, stride_n, stride_d, stride_mb, stride_mn,
    summary_at, stride_summary, grad_stride_b, grad_stride_n, grad_stride_d,
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

        affinity = tl.load(kept + image * 4 * N + row, mask=real, other=0.0)
        head = kept + summary_at + image * stride_summary
        position = (affinity - tl.load(head + 1)) + tl.load(head)
        if BACKGROUND:
            share, total = sigmoid(-position), tl.load(head + 3)
        else:
            share, total = sigmoid(position), tl.load(head + 2)
        # The smallest normal number: an image without any mass stays at zero.
        weight = tl.where(real, share, 0.0) / tl.maximum(total, 1.1754944e-38)
        own_factor = tl.load(factors + image * 2 * N + row, mask=row < N, other=0.0)
        g = tl.load(grad_pooled + image * D + channel, mask=channel < D, other=0.0).to(tl.float32)

        if PROTOTYPES:
            collected = collect(tl.trans(pull), f, collected, D, PRECISION, OPERAND)
            if COUNT_PULLS:
                norm = tl.load(kept + image * 4 * N + N + row, mask=real, other=0.0)
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
def add_or_write(address, values, inside, ATOMIC: tl.constexpr):
    """Add to sums shared by all programs, or write the program's own."""
    if ATOMIC:
        tl.atomic_add(address, values, mask=inside, sem="relaxed")
    else:
        tl.store(address, values, mask=inside)


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
        near_pull = tl.load(factors + image * 2 * N + N + row, mask=real, other=0.0)
        if tl.max(tl.abs(near_pull), axis=0) > 0.0:
            norm = tl.load(kept + image * 4 * N + N + row, mask=real, other=0.0)
            nearest = tl.load(kept + image * 4 * N + 3 * N + row, mask=real, other=0.0).to(tl.int32)
            add_near_gradient(
                tokens + image * stride_b, row * stride_n, real, stride_d, prototypes, kept + norms_at,
                grad_tokens + image * grad_stride_b, row * grad_stride_n, row < N, grad_stride_d,
                accumulated, 1.0 / tl.maximum(norm, 1.0), nearest, near_pull, M, D,
                BM, BS, PRECISION, OPERAND, ATOMIC, True, PROTOTYPES,
            )  # fmt: skip
            if not ATOMIC:
                # The next tile reads what this one wrote.
                tl.debug_barrier()
