"""(P1): the linear programme without smoothing, solved exactly by sorting."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from gspool.functional.checks import check_cost, check_mask, computing_dtype, mu_tensor
from gspool.functional.results import Transport
from gspool.functional.shares import token_count

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from torch import Tensor


def hard_selection(
    cost: Float[Tensor, "*B M N"], mu: float | Float[Tensor, "*B"], mask: Bool[Tensor, "*B N"] | None = None
) -> Transport:
    """Carry the part ``mu`` of the mass at the least cost (P1): the limit of `partial_transport` as epsilon grows.

    Tokens are taken in the order of their smallest cost until the mass is used up, the last one in part; each goes
    wholly to its cheapest prototype. The solution is a vertex of the programme, so it has no gradient.

    Raises:
        ValueError: for wrong shapes, types, devices or ranges, with what was expected.

    Example:
        >>> cost = torch.tensor([[0.1, 0.9, 0.4, 0.8]])
        >>> hard_selection(cost, mu=0.375).plan
        tensor([[0.2500, 0.0000, 0.1250, 0.0000]])
    """
    check_cost(cost)
    check_mask(mask, (*cost.shape[:-2], cost.shape[-1]), cost.device)
    mu = mu_tensor(mu, cost.shape[:-2], cost.device)
    cost = cost.detach().to(computing_dtype(cost))
    cheapest, prototype = cost.min(dim=-2)
    if mask is not None:
        cheapest = cheapest.masked_fill(~mask, torch.inf)
    rank = cheapest.argsort(dim=-1, stable=True).argsort(dim=-1)
    count = token_count(cheapest, mask)[..., None].clamp_min(1)
    given = (count * mu.detach()[..., None] - rank).clamp(0, 1).to(cost.dtype)
    valid = torch.ones_like(given) if mask is None else mask.to(given.dtype)
    given = given * valid
    to_prototype = torch.arange(cost.shape[-2], device=cost.device)[:, None] == prototype[..., None, :]
    return Transport((valid - given) / count, to_prototype * (given / count)[..., None, :])
