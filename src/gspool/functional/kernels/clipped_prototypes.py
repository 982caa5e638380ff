"""The prototypes, clipped to the unit ball (Sec. 4.1) once a call and written down as the matrix units want them."""

# mypy: allow-untyped-defs, allow-incomplete-defs

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def clip_prototypes_kernel(prototypes, kept, clipped, norms_at, M, D, BD: tl.constexpr, PARTS: tl.constexpr):
    """Write the norm of one prototype and the prototype itself, clipped, in the dtype of the tokens.

    A half-precision dtype does not hold all digits of a prototype; with two parts, the second holds what the first
    has lost.
    """
    column = tl.program_id(0)
    total = tl.zeros([BD], dtype=tl.float32)
    for start in range(0, D, BD):
        channel = start + tl.arange(0, BD)
        w = tl.load(prototypes + column * D + channel, mask=channel < D, other=0.0).to(tl.float32)
        total += w * w
    norm = tl.sqrt(tl.sum(total, axis=0))
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
