"""Where the weights of a pooling layer lie on collages, whose quarters are known."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from jaxtyping import Float, Int64
    from torch import Tensor

    from gspool.experiments.collage.models import CollageEmbedder, MapHead


@torch.no_grad()
def weight_on_object(
    model: MapHead | CollageEmbedder, stored: Tensor, objects: Int64[Tensor, " N"], batch_size: int = 512
) -> float | None:
    """Measure how much of the weight lies on the quarter of the object: 1/4 for equal weights; None without weights."""
    model.eval()
    shares = []
    for rows in torch.arange(len(stored), device=stored.device).split(batch_size):
        embedded = model.embed(stored[rows])
        if embedded.weights is None or embedded.grid is None:
            return None
        shares.append(quarter_shares(embedded.weights, embedded.grid).gather(1, objects.to(rows.device)[rows, None]))
    return float(torch.cat(shares).double().mean())


def quarter_shares(weights: Float[Tensor, "B N"], grid: tuple[int, int]) -> Float[Tensor, "B 4"]:
    """Sum the weights of a grid over its four quarters, from upper left to lower right.

    Example:
        >>> quarter_shares(torch.tensor([[0.1, 0.2, 0.3, 0.4]]), (2, 2))
        tensor([[0.1000, 0.2000, 0.3000, 0.4000]])
    """
    high, wide = grid
    return weights.reshape(-1, 2, high // 2, 2, wide // 2).sum((2, 4)).flatten(1)
