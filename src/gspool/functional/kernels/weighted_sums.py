"""Sums of a tile's tokens by weight: as a small matrix product, or by adding up over the tile.

Where the channels of a token lie side by side, a sum over tokens crosses all warps, in every step of a loop over the
channels. A matrix product does not; what it takes is digits. So the weights are written as parts that the matrix unit
holds without loss, one row each, and the rows of the product are added.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

import triton
import triton.language as tl

from gspool.functional.kernels.measure import dot

# A matrix unit takes 16 rows at least: three parts of one weight stand in the first half, of another in the second.
ROWS = tl.constexpr(16)


@triton.jit
def leading_part(numbers, HALF: tl.constexpr):
    """Round float32 numbers to what one operand of the matrix unit holds: bfloat16, or the 11 digits of TF32."""
    if HALF:
        return numbers.to(tl.bfloat16).to(tl.float32)
    else:
        bits = numbers.to(tl.int32, bitcast=True)
        return ((bits + 0x1000) & -0x2000).to(tl.float32, bitcast=True)


@triton.jit
def weight_rows(weight, other, OPERAND: tl.constexpr):
    """Write two weights of each token as rows [16, tokens] of parts that add up to them to the last digit."""
    row = tl.arange(0, ROWS)[:, None]
    whole = tl.where(row < ROWS // 2, weight[None, :], other[None, :])
    first = leading_part(whole, OPERAND == "bf16")
    rest = whole - first
    second = leading_part(rest, OPERAND == "bf16")
    third = leading_part(rest - second, OPERAND == "bf16")
    place = row % (ROWS // 2)
    parts = tl.where(place == 0, first, tl.where(place == 1, second, tl.where(place == 2, third, 0.0)))
    return parts.to(tl.bfloat16) if OPERAND == "bf16" else parts


@triton.jit
def sums_by_product(rows, f, BD: tl.constexpr, OPERAND: tl.constexpr):
    """Sum a piece of the tokens by both weights: [2, channels]."""
    sums = tl.zeros([ROWS, BD], dtype=tl.float32)
    if OPERAND == "fp32":
        # Rounded to nearest, two parts of a token leave no more than float32's own rounding.
        high = leading_part(f, False)
        sums = dot(rows, high, sums, "tf32")
        sums = dot(rows, leading_part(f - high, False), sums, "tf32")
    else:
        sums = dot(rows, f, sums, "tf32")
    return tl.sum(tl.reshape(sums, [2, ROWS // 2, BD]), axis=1)
