"""Distances between one tile of tokens and all prototypes, and their log-affinities, inside a kernel (Sec. 4.1).

As in the plain version, ``|f - w|^2 = |f|^2 + |w|^2 - 2 f.w`` comes from one matrix product, and the nearest prototype
of a token is measured by subtraction where the product would cancel. Here that is done only for tiles that hold a
close pair, because a kernel may branch on its data.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

import os

import triton
import triton.language as tl

from gspool.functional.cost import CLOSE as CLOSE_IN_PLAIN
from gspool.functional.kernels.plan import AFFINITY, EXACT, NEAREST, NORM, TOKEN_ROWS

# The interpreter keeps bfloat16 as bit patterns and cannot multiply them; in float32 the same products are exact.
INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")
# Squared distances above this are as exact as their root can hold, as in the plain version.
CLOSE = tl.constexpr(CLOSE_IN_PLAIN)
# 16 roundings of float32: squared distances so close, relative to the lengths, are equal as far as a product can tell.
TIE = tl.constexpr(1.9073486e-6)
# Numbers beyond 1e19 have squares that overflow; so much smaller (2^-64) they have none.
SHRINK = tl.constexpr(5.421010862427522e-20)


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
def clip_prototypes_kernel(prototypes, kept, clipped, norms_at, M, D, BD: tl.constexpr, PARTS: tl.constexpr):
    """Write the norm of one prototype and the prototype itself, clipped, in the dtype of the tokens.

    A half-precision dtype does not hold all digits of a prototype; with two parts, the second holds what the first
    has lost.
    """
    column = tl.program_id(0)
    total = tl.zeros([BD], dtype=tl.float32)
    shrunk = tl.zeros([BD], dtype=tl.float32)
    for start in range(0, D, BD):
        channel = start + tl.arange(0, BD)
        w = tl.load(prototypes + column * D + channel, mask=channel < D, other=0.0).to(tl.float32)
        total += w * w
        shrunk += (w * SHRINK) * (w * SHRINK)
    norm = tl.sqrt(tl.sum(total, axis=0))
    norm = tl.where(norm < float("inf"), norm, tl.sqrt(tl.sum(shrunk, axis=0)) / SHRINK)
    tl.store(kept + norms_at + column, norm)
    scale = 1.0 / tl.maximum(norm, 1.0)
    for start in range(0, D, BD):
        channel = start + tl.arange(0, BD)
        w = tl.load(prototypes + column * D + channel, mask=channel < D, other=0.0).to(tl.float32) * scale
        high = w.to(clipped.dtype.element_ty)
        tl.store(clipped + column * D + channel, high, mask=channel < D)
        if PARTS == 2:
            low = (w - high.to(tl.float32)).to(clipped.dtype.element_ty)
            tl.store(clipped + (M + column) * D + channel, low, mask=channel < D)


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
def size_of_pair(norm, exact):
    """Return the length to which rounding is relative: that of the clipped token or of its offset, the larger one."""
    return tl.maximum(tl.minimum(norm, 1.0), exact)


@triton.jit
def refined_distances(squared, lowest, exact, norm):
    """Take the root; the nearest prototype, and all that a product cannot separate from it, get the exact distance."""
    distances = tl.sqrt(tl.maximum(squared, 0.0))
    size = size_of_pair(norm, exact)
    # A negative ``exact`` says that the token's tile has no close pair.
    tied = (squared <= (lowest + TIE * (size * size))[:, None]) & (exact >= 0.0)[:, None]
    return tl.where(tied, exact[:, None], distances)


@triton.jit
def tile_rows(tile, N, mask, image, stride_mb, stride_mn, BN: tl.constexpr, HAS_MASK: tl.constexpr):
    """Return the token numbers of a tile, and which of them exist and are not padding."""
    row = tile * BN + tl.arange(0, BN)
    real = row < N
    if HAS_MASK:
        real = real & (tl.load(mask + image * stride_mb + row * stride_mn, mask=real, other=0) != 0)
    return row, real


@triton.jit
def long_norms(tokens, row_offset, real, stride_d, D, BN: tl.constexpr, BD: tl.constexpr):
    """Measure the norms of tokens whose squares overflow."""
    squares = tl.zeros([BN, BD], dtype=tl.float32)
    for start in range(0, D, BD):
        channel = start + tl.arange(0, BD)
        f = read_tokens(tokens, row_offset, real, channel, stride_d, D).to(tl.float32) * SHRINK
        squares += f * f
    return tl.sqrt(tl.sum(squares, axis=1)) / SHRINK


@triton.jit
def tile_products(
    tokens, row_offset, real, stride_d, clipped, column, M, D,
    BN: tl.constexpr, BM: tl.constexpr, BD: tl.constexpr,
    PRECISION: tl.constexpr, PARTS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Multiply the raw tokens of a tile with all prototypes, and measure the tokens' norms on the way."""
    product = tl.zeros([BN, BM], dtype=tl.float32)
    squares = tl.zeros([BN, BD], dtype=tl.float32)
    for start in tl.range(0, D, BD, num_stages=STAGES):
        channel = start + tl.arange(0, BD)
        f = read_tokens(tokens, row_offset, real, channel, stride_d, D)
        product = multiply_accumulate(f, clipped, column, channel, product, M, D, BN, BM, PRECISION, PARTS)
        wide = f.to(tl.float32)
        squares += wide * wide
    norm = tl.sqrt(tl.sum(squares, axis=1))
    if tl.max(norm, axis=0) == float("inf"):
        norm = tl.where(norm < float("inf"), norm, long_norms(tokens, row_offset, real, stride_d, D, BN, BD))
    return product, norm


@triton.jit
def tile_distances(
    tokens, row_offset, real, stride_d, prototypes, clipped, w_norms, M, D,
    BN: tl.constexpr, BM: tl.constexpr, BD: tl.constexpr,
    PRECISION: tl.constexpr, PARTS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Return ``c_ij``, infinite for no prototype, and what the backward pass needs of norms and nearest prototypes."""
    column = tl.arange(0, BM)
    w_norm = tl.load(w_norms + column, mask=column < M, other=0.0)
    product, norm = tile_products(
        tokens, row_offset, real, stride_d, clipped, column, M, D,
        BN, BM, BD, PRECISION, PARTS, STAGES,
    )  # fmt: skip
    squared = squared_distances(product, norm, w_norm, column, M)
    lowest = tl.min(squared, axis=1)
    # Among NaN a GPU may find padding, and what is loaded by this number is not guarded.
    nearest = tl.minimum(tl.argmin(squared, axis=1), M - 1)
    exact = tl.full([BN], -1.0, dtype=tl.float32)
    if tl.min(tl.where(real, lowest, 1.0), axis=0) < CLOSE:
        scale = 1.0 / tl.maximum(norm, 1.0)
        exact = measure_nearest(tokens, row_offset, real, stride_d, prototypes, w_norms, nearest, scale, D, BN, BD)
    return refined_distances(squared, lowest, exact, norm), norm, exact, nearest


@triton.jit
def tile_affinity(
    tokens, row_offset, real, stride_d, prototypes, clipped, w_norms, epsilon, M, D,
    BN: tl.constexpr, BM: tl.constexpr, BD: tl.constexpr,
    PRECISION: tl.constexpr, PARTS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Return ``-epsilon c_ij``, ``l_j``, and what the backward pass needs of norms and nearest prototypes."""
    column = tl.arange(0, BM)
    distances, norm, exact, nearest = tile_distances(
        tokens, row_offset, real, stride_d, prototypes, clipped, w_norms, M, D, BN, BM, BD, PRECISION, PARTS, STAGES
    )
    # epsilon = 0 must not meet the infinite distance of a prototype that does not exist.
    logits = tl.where((column < M)[None, :], distances * -epsilon, float("-inf"))
    largest = tl.max(logits, axis=1)
    affinity = largest + tl.log(tl.sum(tl.exp(logits - largest[:, None]), axis=1))
    return logits, affinity, norm, exact, nearest


@triton.jit
def token_rows(kept, image, row, N):
    """Return the address of a token's first kept number; the next ones follow N apart."""
    return kept + image * TOKEN_ROWS * N + row


@triton.jit
def keep_tokens(kept, image, row, N, affinity, norm, exact, nearest):
    """Write the numbers of every token that the backward pass needs."""
    tl.store(token_rows(kept, image, row, N) + AFFINITY * N, affinity, mask=row < N)
    keep_nearest(kept, image, row, N, norm, exact, nearest)


@triton.jit
def keep_nearest(kept, image, row, N, norm, exact, nearest):
    """Write norms and nearest prototypes, which the gradient of the distances needs."""
    rows = token_rows(kept, image, row, N)
    tl.store(rows + NORM * N, norm, mask=row < N)
    tl.store(rows + EXACT * N, exact, mask=row < N)
    tl.store(rows + NEAREST * N, nearest.to(tl.float32), mask=row < N)
