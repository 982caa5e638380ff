"""Where the numbers that the forward pass keeps for the backward pass stand in the one tensor that holds them."""

from __future__ import annotations

from typing import NamedTuple


class KeptLayout(NamedTuple):
    """First four numbers a token [B, 4, N], then the sums of each image, then the norms of the prototypes.

    The sums of an image begin with eight numbers of the threshold; where the backward pass cuts images into tiles,
    sums of tokens and assignments by slope follow, and, for the gradient of mu, the same by weight.
    """

    summary_at: int
    summary_stride: int
    norms_at: int
    length: int


def kept_layout(images: int, tokens: int, channels: int, prototypes: int, sums: int) -> KeptLayout:
    """Lay out the kept numbers; ``sums`` counts the sums of length D + M that an image has.

    Example:
        >>> kept_layout(images=2, tokens=49, channels=64, prototypes=8, sums=1)
        KeptLayout(summary_at=400, summary_stride=80, norms_at=560, length=568)
    """
    # Every part starts where wide loads may.
    summary_at = (images * 4 * tokens + 15) // 16 * 16
    stride = 8 + sums * (channels + prototypes)
    norms_at = summary_at + (images * stride + 15) // 16 * 16
    return KeptLayout(summary_at, stride, norms_at, norms_at + prototypes)
