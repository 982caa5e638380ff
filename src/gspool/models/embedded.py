"""The output of an embedding model."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor


class Embedded(NamedTuple):
    """One unit vector per image, and what it was pooled from.

    ``weights`` (sum 1 over the N tokens, row by row on a ``grid`` of h x w) and ``attributes`` (sum 1 over
    the prototypes) are None if the pooling layer has none; ``grid`` is None if the tokens form none.
    """

    embedding: Float[Tensor, "B D"]
    weights: Float[Tensor, "B N"] | None = None
    attributes: Float[Tensor, "B M"] | None = None
    grid: tuple[int, int] | None = None
