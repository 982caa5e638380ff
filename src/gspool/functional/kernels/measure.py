"""Distances between one tile of tokens and all prototypes, inside a kernel (Sec. 4.1).

As in the plain version, ``|f - w|^2 = |f|^2 + |w|^2 - 2 f.w`` comes from one matrix product, and the nearest prototype
of a token is measured by subtraction where the product would cancel. Here that is done only for tiles that hold a
close pair, because a kernel may branch on its data.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

import os

import triton
import triton.language as tl

# The interpreter keeps bfloat16 as bit patterns and cannot multiply them; in float32 the same products are exact.
INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")


@triton.jit
def known_multiple(size, HINT: tl.constexpr):
    """Tell the compiler what a size is a multiple of, so that loads become wide; a size of 1 is a constant to it.

    ``tl.multiple_of`` would be lost on a kernel's own argument; the compiler believes in a product.
    """
    if HINT > 1:
        return (size // HINT) * HINT
    else:
        return size


@triton.jit
def read_tokens(tokens, row_offset, real, channel, stride_d, D):
    """Load a piece [rows, channels] of the tokens; padding and what lies outside reads as 0."""
    inside = real[:, None] & (channel < D)[None, :]
    return tl.load(tokens + row_offset[:, None] + channel[None, :] * stride_d, mask=inside, other=0.0)


@triton.jit
def read_prototypes(prototypes, column, channel, M, D):
    """Load a piece [columns, channels] of the prototypes."""
    inside = (column < M)[:, None] & (channel < D)[None, :]
    return tl.load(prototypes + column[:, None] * D + channel[None, :], mask=inside, other=0.0)


@triton.jit
def dot(a, b, accumulator, PRECISION: tl.constexpr):
    """Add ``a @ b`` to a float32 accumulator."""
    if INTERPRETED:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), accumulator, input_precision="ieee")
    else:
        return tl.dot(a, b, accumulator, input_precision=PRECISION)


@triton.jit
def multiply_accumulate(
    f, clipped, column, channel, accumulator, M, D,
    BN: tl.constexpr, BM: tl.constexpr, PRECISION: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """Add ``f @ w.T`` for all prototypes and a piece of the channels.

    The piece is summed apart and then added, times a 1 that the compiler does not know. Adding inside the matrix unit
    would let it run on while the next tokens are loaded, and Triton 3.6 keeps one buffer too few for loads that, like
    these, feed ordinary arithmetic as well: it would overwrite tokens that are still being read.
    """
    w = read_prototypes(clipped, column, channel, M, D)
    piece = dot(f, tl.trans(w), tl.zeros([BN, BM], dtype=tl.float32), PRECISION)
    if PARTS == 2:
        w = read_prototypes(clipped + M * D, column, channel, M, D)
        piece = dot(f, tl.trans(w), piece, PRECISION)
    return accumulator + piece * tl.where(D > 0, 1.0, 2.0)


@triton.jit
def squared_distances(product, norm, w_norm, column, M):
    """Square the distances from the product of raw tokens and clipped prototypes; infinite for no prototype."""
    scale = 1.0 / tl.maximum(norm, 1.0)
    length, w_length = norm * scale, tl.minimum(w_norm, 1.0)
    squared = product * (-2.0 * scale)[:, None] + (w_length * w_length)[None, :] + (length * length)[:, None]
    return tl.where((column < M)[None, :], squared, float("inf"))


@triton.jit
def offset_piece(tokens, row_offset, real, stride_d, prototypes, nearest, w_scale, scale, channel, D):
    """Subtract from each clipped token its nearest clipped prototype, for a piece of the channels."""
    f = read_tokens(tokens, row_offset, real, channel, stride_d, D).to(tl.float32)
    inside = real[:, None] & (channel < D)[None, :]
    w = tl.load(prototypes + nearest[:, None] * D + channel[None, :], mask=inside, other=0.0).to(tl.float32)
    return f, f * scale[:, None] - w * w_scale[:, None]


@triton.jit
def measure_nearest(
    tokens, row_offset, real, stride_d, prototypes, w_norms, nearest, scale, D, BN: tl.constexpr, BD: tl.constexpr
):
    """Measure each token's nearest prototype by subtraction."""
    w_scale = 1.0 / tl.maximum(tl.load(w_norms + nearest), 1.0)
    total = tl.zeros([BN, BD], dtype=tl.float32)
    for start in range(0, D, BD):
        channel = start + tl.arange(0, BD)
        _, offset = offset_piece(tokens, row_offset, real, stride_d, prototypes, nearest, w_scale, scale, channel, D)
        total += offset * offset
    return tl.sqrt(tl.sum(total, axis=1))


@triton.jit
def refined_distances(squared, lowest, exact):
    """Take the root, with the exact distance for the nearest prototype and all that the product cannot tell from it."""
    distances = tl.sqrt(tl.maximum(squared, 0.0))
    # 16 float32 roundings; a negative ``exact`` says that the token's tile has no close pair.
    tied = (squared <= (lowest + 1.9073486e-6)[:, None]) & (exact >= 0.0)[:, None]
    return tl.where(tied, exact[:, None], distances)
