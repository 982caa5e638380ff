"""From the pulls between a tile of tokens and the prototypes to the gradients of both: two matrix products a piece."""

# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

import triton
import triton.language as tl

from gspool.functional.kernels.measure import INTERPRETED, offset_piece, read_prototypes, read_tokens


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
    ATOMIC: tl.constexpr, TOKENS: tl.constexpr, PROTOTYPES: tl.constexpr,
):  # fmt: skip
    """Write a tile's token gradient and add its part of the prototypes' gradient; ``there`` says which rows exist."""
    column = tl.arange(0, BM)
    pieces = tl.cdiv(D, BD)
    for piece in tl.range(0, pieces, num_stages=STAGES):
        # Every tile starts elsewhere, so that they do not all add to the same addresses at once.
        channel = ((piece + turn) % pieces) * BD + tl.arange(0, BD)
        f = read_tokens(tokens, row_offset, real, channel, stride_d, D)
        if TOKENS:
            # Towards the prototypes, along the token itself, and from the pooled vector.
            w = read_prototypes(clipped, column, channel, M, D)
            g = tl.load(grad_pooled + channel, mask=channel < D, other=0.0).to(tl.float32)
            gradient = f.to(tl.float32) * own_factor[:, None] + weight[:, None] * g[None, :]
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

    A product cannot form ``f - w`` for a token that sits on a prototype. Few tiles come here, so the loop that all
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
