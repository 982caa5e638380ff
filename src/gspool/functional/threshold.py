"""The scalar root behind (P2): one threshold an image decides how much mass every token gives away."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from torch import Tensor

# A bracket that was halved HALVINGS times leaves Newton within reach of quadratic convergence; these steps then reach
# the precision of the dtype for every problem tried (docs/math.md, "How many steps").
HALVINGS = 4
NEWTON_STEPS = {torch.float32: 3, torch.float64: 7}


class Bracket(NamedTuple):
    """An interval that holds the root."""

    low: Float[Tensor, "*B"]
    high: Float[Tensor, "*B"]


def threshold(
    log_affinity: Float[Tensor, "*B N"], mu: Float[Tensor, "*B"], mask: Bool[Tensor, "*B N"] | None = None
) -> Float[Tensor, "*B"]:
    """Solve ``mean_j sigmoid(tau + log_affinity_j) = mu`` for tau, to the precision of the dtype.

    Order statistics bracket the root, bisection narrows the bracket, and Newton's method on the logit of the mean,
    kept inside it, does the rest: a fixed amount of work and no branch on the data, so that it compiles and exports.
    For ``mu = 1`` the root is at infinity; a tau so large that every sigmoid is exactly 1 stands for it.
    Not differentiable by itself: the callers know the derivative in closed form.
    """
    # Half of the problems come mirrored: sigmoid(-x) = 1 - sigmoid(x), so a mean above 1/2 is solved as 1 - mu, which
    # keeps the small one of the two masses, the one that rounding would hurt, in plain sight.
    mirrored = mu > 0.5
    share = torch.where(mirrored, 1 - mu, mu).to(log_affinity.dtype)
    highest = log_affinity if mask is None else log_affinity.masked_fill(~mask, -torch.inf)
    lowest = log_affinity if mask is None else log_affinity.masked_fill(~mask, torch.inf)
    centre = highest.amax(-1)
    logits = (log_affinity - centre[..., None]) * (1 - 2 * mirrored.to(share.dtype))[..., None]
    if mask is not None:
        logits = logits.masked_fill(~mask, -torch.inf)
    count = logits.shape[-1] if mask is None else mask.sum(-1).to(logits.dtype)
    # On a plateau the rounding of a long sum would fall on the few tokens at its edge: masses are summed in mu's dtype.
    mass = torch.where(mirrored, 1 - mu, mu) * count
    low, high = narrowed(order_statistics_bracket(logits, share, count), logits, mass)
    tau = 0.5 * (low + high)
    for _ in range(NEWTON_STEPS[tau.dtype]):
        given = torch.sigmoid(tau[..., None] + logits)
        excess = ((given.sum(-1, dtype=mass.dtype) - mass) / count).to(tau.dtype)
        mean = share + excess
        # A plateau has no slope, and every tau on it is a root.
        slope = (mean - given.square().sum(-1) / count).clamp_min(torch.finfo(tau.dtype).tiny)
        # logit(mean) - logit(share), from their difference so that no digit is lost close to the root.
        logit_error = torch.log1p(excess / (share * (1 - mean)))
        tau = (tau - logit_error * mean * (1 - mean) / slope).clamp(low, high)
    tau = torch.where(mirrored, -tau, tau) - centre
    lowest = lowest.amin(-1)
    # The second term outgrows the rounding of the first, however sharp epsilon is.
    return torch.where(mu >= 1, 2000 - lowest + 1e-5 * lowest.abs(), tau)


def order_statistics_bracket(
    logits: Float[Tensor, "*B N"], share: Float[Tensor, "*B"], count: Float[Tensor, "*B"] | int
) -> Bracket:
    """Bound the root by the sorted logits, within a few times ``log n`` whatever their spread.

    The k largest tokens cannot give more than the whole, ``k sigmoid(tau + s_k) <= n share``, and likewise for what the
    ``n - k + 1`` smallest keep back. Every k gives a bound; the tightest are taken. The plain bracket, from the largest
    and the smallest logit, grows with epsilon instead.
    """
    descending = logits.sort(dim=-1, descending=True).values
    rank = torch.arange(1, logits.shape[-1] + 1, device=logits.device, dtype=logits.dtype)
    total = count[..., None] if isinstance(count, torch.Tensor) else count
    given = total * share[..., None]
    above = rank - given
    below = given - (rank - 1)
    high = torch.where(above > 0, torch.log(given / above) - descending, torch.inf).amin(-1)
    low = torch.where(below > 0, torch.log(below / (total - given)) - descending, -torch.inf).amax(-1)
    # A hair wider, so that rounding cannot shut the root out where both bounds meet in it.
    hair = 1e-3 + 8 * torch.finfo(logits.dtype).eps * (low.abs() + high.abs())
    return Bracket(low - hair, high + hair)


def narrowed(bracket: Bracket, logits: Float[Tensor, "*B N"], mass: Float[Tensor, "*B"]) -> Bracket:
    """Halve the bracket HALVINGS times, and keep the half in which ``sum_j sigmoid`` passes ``mass``."""
    low, high = bracket
    for _ in range(HALVINGS):
        middle = 0.5 * (low + high)
        too_little = torch.sigmoid(middle[..., None] + logits).sum(-1) < mass
        low, high = torch.where(too_little, middle, low), torch.where(too_little, high, middle)
    return Bracket(low, high)
