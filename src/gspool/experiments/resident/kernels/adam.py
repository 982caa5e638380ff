"""Adam for many tensors in one launch, with weights that a scale a channel has multiplied and rounded.

A row of ``table`` describes one tensor: the addresses of what belongs to it, its length, how many values share a scale,
and its first chunk. Programs take a chunk each; ``owner`` says whose it is.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

import triton
import triton.language as tl

CHUNK = 4096
COLUMNS = tl.constexpr(10)
WEIGHT, MEAN, SQUARE, ROUNDED, GRADIENT, SCALE, STEP, LENGTH, SHARED, FIRST = (tl.constexpr(i) for i in range(10))


@triton.jit
def address(row, COLUMN: tl.constexpr, KIND: tl.constexpr):
    """Read an address of the table."""
    return tl.load(row + COLUMN).to(tl.pointer_type(KIND))


@triton.jit
def places(row, chunk, CHUNK: tl.constexpr):
    """Give the places of a chunk in its tensor, which of them exist, and the channel of each."""
    start = (chunk - tl.load(row + FIRST)).to(tl.int32) * CHUNK
    place = start + tl.arange(0, CHUNK)
    return place, place < tl.load(row + LENGTH).to(tl.int32), place // tl.load(row + SHARED).to(tl.int32)


@triton.jit
def round_weights(table, owner, KIND: tl.constexpr, CHUNK: tl.constexpr):
    """Write every weight times its scale, rounded."""
    chunk = tl.program_id(0)
    row = table + tl.load(owner + chunk) * COLUMNS
    place, there, channel = places(row, chunk, CHUNK)
    weight = tl.load(address(row, WEIGHT, tl.float32) + place, mask=there)
    scale = tl.load(address(row, SCALE, tl.float32) + channel, mask=there)
    tl.store(address(row, ROUNDED, KIND) + place, (weight * scale).to(KIND), mask=there)


@triton.jit
def sum_squares(table, owner, sums, KIND: tl.constexpr, CHUNK: tl.constexpr):
    """Write the sum of the squares of a chunk's gradients; those of rounded weights become those of weights first."""
    chunk = tl.program_id(0)
    row = table + tl.load(owner + chunk) * COLUMNS
    place, there, channel = places(row, chunk, CHUNK)
    gradient = tl.load(address(row, GRADIENT, KIND) + place, mask=there, other=0.0).to(tl.float32)
    gradient *= tl.load(address(row, SCALE, tl.float32) + channel, mask=there, other=0.0)
    tl.store(sums + chunk, tl.sum(gradient * gradient))


@triton.jit
def step_weights(
    table, owner, factor, rate, first_decay, second_decay, log_first, log_second, least, decay,
    DECOUPLED: tl.constexpr, KIND: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Make one step of Adam, of AdamW if ``DECOUPLED``; ``factor`` keeps the gradient in bounds."""
    chunk = tl.program_id(0)
    row = table + tl.load(owner + chunk) * COLUMNS
    place, there, channel = places(row, chunk, CHUNK)
    rate = tl.load(rate).to(tl.float32)
    step = tl.load(address(row, STEP, tl.float32))
    gradient = tl.load(address(row, GRADIENT, KIND) + place, mask=there, other=0.0).to(tl.float32)
    gradient *= tl.load(address(row, SCALE, tl.float32) + channel, mask=there, other=0.0)
    gradient *= tl.load(factor)
    weights = address(row, WEIGHT, tl.float32) + place
    means = address(row, MEAN, tl.float32) + place
    squares = address(row, SQUARE, tl.float32) + place
    weight = tl.load(weights, mask=there, other=0.0)
    if DECOUPLED:
        weight -= rate * decay * weight
    else:
        gradient += decay * weight
    mean = tl.load(means, mask=there, other=0.0)
    mean += (1 - first_decay) * (gradient - mean)
    square = second_decay * tl.load(squares, mask=there, other=0.0) + (1 - second_decay) * gradient * gradient
    # Powers of the decays by logarithms: Triton has no power of two floats everywhere.
    size = rate / (1 - tl.exp(step * log_first))
    spread = tl.sqrt(square) / tl.sqrt(1 - tl.exp(step * log_second)) + least
    tl.store(weights, weight - size * mean / spread, mask=there)
    tl.store(means, mean, mask=there)
    tl.store(squares, square, mask=there)
