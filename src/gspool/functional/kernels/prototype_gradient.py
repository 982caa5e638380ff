"""The last step of the backward pass: add up the programs' sums and go through the clipping of the prototypes."""

# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def raw_gradient(prototypes, accumulated, column, channel, pulls, w_scale, M, D, parts):
    """Give a piece of one clipped prototype and of the gradient with respect to it."""
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
    """Write the gradient of one prototype; ``gradient`` may be the memory of ``accumulated`` itself."""
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
