"""The gradient of `gsp_pool` in closed form; nothing is unrolled.

The derivation stands in docs/math.md; the order here is the chain rule's, from the outputs back to the tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from gspool.functional.checks import values_can_be_read
from gspool.functional.cost import (
    Nearest,
    clip_norm,
    offsets,
    refined,
    size_of_pair,
    squared_by_product,
    vector_length,
)
from gspool.functional.results import Incoming, PoolGradient, Wanted
from gspool.functional.shares import normalised, share_gradient, shares, token_count

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from torch import Tensor

# An offset of so many roundings, as k-center initialisation leaves it, has no direction worth following.
OFFSET_ROUNDINGS = 8


class Plan(NamedTuple):
    """What is kept where it is small, and recomputed elsewhere: distances and the softmax over the prototypes."""

    distances: Float[Tensor, "B N M"]
    assignment: Float[Tensor, "B N M"]


class Saved(NamedTuple):
    """What the forward pass of `gsp_pool` keeps: its inputs, numbers of size [B, N], and the plan where it is small."""

    tokens: Float[Tensor, "B N D"]
    prototypes: Float[Tensor, "M D"]
    mu: Float[Tensor, B]
    epsilon: Float[Tensor, ""]
    mask: Bool[Tensor, "B N"] | None
    norm: Float[Tensor, "B N"]
    position: Float[Tensor, "B N"]
    nearest: Nearest
    plan: Plan | None


def assign(
    distances: Float[Tensor, "B N M"], epsilon: Float[Tensor, ""]
) -> tuple[Float[Tensor, "B N M"], Float[Tensor, "B N"]]:
    """Return the softmax of ``-epsilon c_ij`` over the prototypes, and the logarithm of its denominator.

    The largest entry of the softmax is ``1 / sum_i exp(-epsilon (c_ij - min c_j))``: it holds that logarithm already.
    """
    assignment = torch.softmax(distances * -epsilon, dim=-1)
    return assignment, -(epsilon * distances.amin(-1) + assignment.amax(-1).log())


def pool_gradient(saved: Saved, incoming: Incoming, background: bool, wanted: Wanted) -> PoolGradient:
    """Carry the gradients of the outputs back to those of tokens, prototypes, mu and epsilon that are wanted."""
    tokens, mask, dtype = saved.tokens, saved.mask, saved.tokens.dtype
    distances, assignment = saved.plan or _plan_again(saved)
    given, kept = shares(saved.position, mask)
    mass = normalised(given)
    weights = normalised(kept) if background else mass

    # To the shares a_j: the weights are a / (n mu), or (1 - a) / (n (1 - mu)); the attributes are sum_j mass_j S_ij.
    to_weights = torch.zeros_like(mass) if incoming.weights is None else incoming.weights
    if incoming.pooled is not None:
        to_weights = to_weights + torch.bmm(incoming.pooled[:, None, :], tokens.transpose(1, 2))[:, 0]
    to_mass = torch.zeros_like(mass)
    if incoming.attributes is not None:
        to_mass = torch.bmm(assignment, incoming.attributes[..., None])[..., 0]
    # All of it with respect to a / (n part), where part is mu or 1 - mu: such shares are of the size of the weights.
    part = (1 - saved.mu if background else saved.mu).to(dtype).clamp_min(torch.finfo(dtype).tiny)
    by_weight = -to_weights if background else to_weights
    by_mass = to_mass * (part / saved.mu.to(dtype))[:, None] if background else to_mass
    total = (token_count(saved.position, mask) * part).clamp_min(torch.finfo(dtype).tiny)
    root = share_gradient(by_weight + by_mass, saved.position, total, mask)
    grad_mu = None
    if wanted.mu:
        grad_mu = ((root.mean - (weights * by_weight + mass * by_mass).sum(-1)) / part).to(saved.mu.dtype)

    # To the logits -epsilon c_ij, through the log-affinity and through the softmax.
    own = (root.log_affinity - mass * to_mass)[..., None]
    if incoming.attributes is None:
        grad_logits = assignment * own
    else:
        grad_logits = torch.addcmul(own, mass[..., None], incoming.attributes[:, None, :]).mul_(assignment)
    grad_epsilon = -(grad_logits * distances).sum() if wanted.epsilon else None
    grad_tokens, grad_prototypes = through_distance(
        grad_logits, -saved.epsilon, distances, tokens, saved.prototypes, saved.norm, saved.nearest, wanted
    )
    if grad_tokens is not None and incoming.pooled is not None:
        grad_tokens = _add_product(grad_tokens, weights[..., None], incoming.pooled[:, None, :])
    return PoolGradient(grad_tokens, grad_prototypes, grad_mu, grad_epsilon)


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """Add ``left * right``, in place where that is faster; vmap has no rule for it."""
    return total.addcmul_(left, right) if values_can_be_read(total) else torch.addcmul(total, left, right)


def _plan_again(saved: Saved) -> Plan:
    norm = saved.norm
    scale, squared_norm = norm.clamp_min(1).reciprocal(), norm.clamp_max(1).square()
    squared = squared_by_product(saved.tokens, scale, squared_norm, clip_norm(saved.prototypes))
    distances = refined(squared, saved.nearest, norm)
    return Plan(distances, assign(distances, saved.epsilon)[0])


def through_distance(
    gradient: Float[Tensor, "B N M"],
    times: Float[Tensor, ""] | float,
    distances: Float[Tensor, "B N M"],
    tokens: Float[Tensor, "B N D"],
    prototypes: Float[Tensor, "M D"],
    norm: Float[Tensor, "B N"],
    nearest: Nearest,
    wanted: Wanted,
) -> tuple[Float[Tensor, "B N D"] | None, Float[Tensor, "M D"] | None]:
    """Go through ``c_ij = |f_j - w_i|`` and the clipping: pulls along ``f_j - w_i``, summed by two matrix products.

    A product cannot form ``f - w`` for a token that lies on a prototype. So the pull towards the nearest comes apart
    from the others and is applied along the offset itself, or is 0 where that is mere rounding; the others are bounded
    at the distance below which rounding would point them anywhere. The gradient with respect to the distances is
    ``gradient`` times ``times``; ``gradient`` is overwritten.
    """
    scale, clipped = norm.clamp_min(1).reciprocal(), clip_norm(prototypes)
    index = nearest.prototype[:, None]
    close = nearest.take(gradient)
    to_nearest = close.gather(-1, index)[:, 0]
    gradient = nearest.put(gradient, close.scatter(-1, index, 0))
    by_distance = (gradient * distances).sum(-1)
    eps = torch.finfo(tokens.dtype).eps
    factor = scale * times
    # In place: on the CPU, fresh memory for every step costs more than the arithmetic.
    pull = gradient.mul_(factor[..., None])
    size = size_of_pair(norm, nearest)
    # Offsets so short that their squares underflow have no direction either.
    shortest_known = 128 * torch.finfo(tokens.dtype).tiny ** 0.5
    least = (eps**0.5 * size).clamp_min(shortest_known)
    close = nearest.take(distances)
    bounded = nearest.take(pull) / torch.maximum(close, least[:, None]) * (close > shortest_known)
    pull = nearest.put(pull if nearest.has_all(pull) else pull.div_(distances), bounded)
    apart = nearest.distance > (OFFSET_ROUNDINGS * eps * size).clamp_min(shortest_known)
    near_pull = torch.where(apart, to_nearest * nearest.take(factor) / nearest.distance, 0)
    # Not in place: under vmap the pulls are many and the offset is one.
    along_offset = offsets(tokens, scale, clipped, nearest) * near_pull[:, None]
    grad_tokens = grad_prototypes = None
    if wanted.tokens:
        # Clipping projects the gradient to the sphere: what points along the token has no effect on where it ends. That
        # part, the sum of pull (f . (f - w)), follows from the distances without another pass over the tokens.
        total = pull.sum(-1)
        squared_norm = norm.clamp_max(1).square()
        along = 0.5 * (total * squared_norm - pull @ clipped.square().sum(-1) + by_distance * factor)
        grad_tokens = nearest.add(torch.matmul(pull, -clipped), along_offset)
        along = nearest.add(along, (along_offset * nearest.take(tokens)).sum(-1) * nearest.take(scale))
        kept = (total - torch.where(norm > 1, along, 0)) * scale
        grad_tokens = _add_product(grad_tokens, tokens, kept[..., None])
    if wanted.prototypes:
        pulls = scale.reciprocal().flatten() @ pull.flatten(0, 1)
        unscaled = along_offset / nearest.take(scale)[:, None]
        if values_can_be_read(tokens) or not nearest.has_all(tokens):
            by_token = pull.flatten(0, 1).t() @ tokens.flatten(0, 1)
            by_token = by_token.index_add(0, nearest.prototype, unscaled)
        else:
            # Image by image: a GPU cannot share out one product of few rows, nor additions to the same row.
            belongs = (index == torch.arange(clipped.shape[0], device=index.device)).to(pull.dtype).view_as(pull)
            by_token = (torch.matmul(pull.mT, tokens) + torch.matmul(belongs.mT, unscaled.view_as(tokens))).sum(0)
        grad_clipped = clipped * pulls[:, None] - by_token
        prototype_norm = vector_length(prototypes)
        radial = torch.where(prototype_norm > 1, (grad_clipped * clipped).sum(-1), 0)
        grad_prototypes = (grad_clipped - clipped * radial[:, None]) / prototype_norm.clamp_min(1)[:, None]
    return grad_tokens, grad_prototypes
