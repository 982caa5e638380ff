"""Greedy k-center: prototypes that cover what was seen."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from gspool.functional.checks import check_tensor

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor


def greedy_centers(vectors: Float[Tensor, "K D"], count: int) -> Int[Tensor, M]:
    """Choose ``count`` rows so that every row has a chosen one near: each next row is the one farthest from all before.

    Starts at the row nearest to the mean, so that the choice is the same on every machine that sees the same rows. The
    covering radius is at most twice the best possible (Gonzalez).

    Raises:
        ValueError: if there are fewer rows than centers to choose, or a row is not finite.

    Example:
        >>> greedy_centers(torch.tensor([[0.0], [0.1], [5.0], [9.0]]), count=3)
        tensor([2, 0, 3])
    """
    check_tensor(vectors, "vectors", "[K, D]")
    if vectors.ndim != 2 or not 1 <= count <= vectors.shape[0]:
        raise ValueError(
            f"to choose {count} centers give at least as many vectors [K, D], got shape {tuple(vectors.shape)}; "
            "collect more features or ask for fewer prototypes"
        )
    if not bool(torch.isfinite(vectors).all()):
        raise ValueError("vectors hold NaN or infinity; look for the layer that produced them before choosing centers")
    vectors = vectors.detach().to(torch.float64 if vectors.dtype == torch.float64 else torch.float32)
    chosen = torch.empty(count, dtype=torch.long, device=vectors.device)
    chosen[0] = torch.linalg.vector_norm(vectors - vectors.mean(0), dim=-1).argmin()
    to_nearest = torch.full((vectors.shape[0],), torch.inf, dtype=vectors.dtype, device=vectors.device)
    for k in range(1, count):
        newest = vectors[chosen[k - 1]]
        to_nearest = torch.minimum(to_nearest, torch.linalg.vector_norm(vectors - newest, dim=-1))
        # A row is chosen once even where all distances are 0, because the features hold duplicates.
        to_nearest[chosen[k - 1]] = -1
        chosen[k] = to_nearest.argmax()
    return chosen
