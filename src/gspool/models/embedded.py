"""What an embedding model gives."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor


class Embedded(NamedTuple):
    """One unit vector an image, and how it came about.

    ``weights`` (sum 1 over the N tokens, which lie row by row on a ``grid`` of h x w) and ``attributes`` (sum 1 over
    the prototypes) are None where the pooling layer has no such thing; ``grid`` is None where the tokens form none.
    """

    embedding: Float[Tensor, "B D"]
    weights: Float[Tensor, "B N"] | None = None
    attributes: Float[Tensor, "B M"] | None = None
    grid: tuple[int, int] | None = None
