"""The gradient of `gsp_pool` in closed form: what is cheap is recomputed, nothing is unrolled.

The derivation stands in docs/math.md; the order here is the chain rule's, from the outputs back to the tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from gspool.functional.cost import Nearest, clip_scale, offsets, refined, squared_by_product
from gspool.functional.shares import normalised, share_gradient, shares, token_count

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from torch import Tensor


class Saved(NamedTuple):
    """What the forward pass of `gsp_pool` keeps: its inputs and numbers of size [B, N], nothing larger."""

    tokens: Float[Tensor, "B N D"]
    prototypes: Float[Tensor, "M D"]
    mu: Float[Tensor, B]
    epsilon: Float[Tensor, ""]
    mask: Bool[Tensor, "B N"] | None
    norm: Float[Tensor, "B N"]
    position: Float[Tensor, "B N"]
    nearest: Nearest


class Incoming(NamedTuple):
    """Gradients of the loss with respect to the three outputs; None for one that the loss does not look at."""

    pooled: Float[Tensor, "B D"] | None
    weights: Float[Tensor, "B N"] | None
    attributes: Float[Tensor, "B M"] | None


class PoolGradient(NamedTuple):
    """Gradients of the loss with respect to the four differentiable inputs."""

    tokens: Float[Tensor, "B N D"]
    prototypes: Float[Tensor, "M D"]
    mu: Float[Tensor, B]
    epsilon: Float[Tensor, ""] | None


def pool_gradient(saved: Saved, incoming: Incoming, background: bool, with_epsilon: bool) -> PoolGradient:
    """Carry the gradients of the outputs back to tokens, prototypes, mu and epsilon."""
    tokens, mask, mu = saved.tokens, saved.mask, saved.mu.to(saved.tokens.dtype)
    scale = saved.norm.clamp_min(1).reciprocal()
    clipped = saved.prototypes * clip_scale(saved.prototypes)[:, None]
    squared = squared_by_product(tokens, scale, (saved.norm * scale).square(), clipped)
    distances = refined(squared, saved.nearest)
    assignment = torch.softmax(distances * -saved.epsilon, dim=-1)
    given, kept = shares(saved.position, mask)
    mass = normalised(given)
    weights = normalised(kept) if background else mass

    # To the shares a_j: the weights are a / (n mu), or (1 - a) / (n (1 - mu)); the attributes are sum_j mass_j S_ij.
    to_weights = torch.zeros_like(mass) if incoming.weights is None else incoming.weights
    if incoming.pooled is not None:
        to_weights = to_weights + torch.bmm(incoming.pooled[:, None, :], tokens.transpose(1, 2))[:, 0]
    to_mass = torch.zeros_like(mass)
    if incoming.attributes is not None:
        to_mass = (assignment * incoming.attributes[:, None, :]).sum(-1)
    by_weight = -to_weights / (1 - mu)[:, None] if background else to_weights / mu[:, None]
    by_mass = to_mass / mu[:, None]
    count = token_count(saved.position, mask)
    root = share_gradient((by_weight + by_mass) / count[:, None], saved.position, count, mask)
    grad_mu = root.mu - (weights * by_weight + mass * by_mass).sum(-1)

    # To the logits -epsilon c_ij, through the log-affinity and through the softmax.
    own = (root.log_affinity - mass * to_mass)[..., None]
    if incoming.attributes is None:
        grad_logits = assignment * own
    else:
        grad_logits = torch.addcmul(own, mass[..., None], incoming.attributes[:, None, :]).mul_(assignment)
    grad_epsilon = -(grad_logits * distances).sum() if with_epsilon else None

    grad_tokens, grad_prototypes = _through_distance(grad_logits, distances, squared, saved, scale, clipped)
    if incoming.pooled is not None:
        grad_tokens = torch.addcmul(grad_tokens, weights[..., None], incoming.pooled[:, None, :])
    return PoolGradient(grad_tokens, grad_prototypes, grad_mu.to(saved.mu.dtype), grad_epsilon)


def _through_distance(
    grad_logits: Float[Tensor, "B N M"],
    distances: Float[Tensor, "B N M"],
    squared: Float[Tensor, "B N M"],
    saved: Saved,
    scale: Float[Tensor, "B N"],
    clipped: Float[Tensor, "M D"],
) -> tuple[Float[Tensor, "B N D"], Float[Tensor, "M D"]]:
    """Go through ``c_ij = |f_j - w_i|`` and the clipping: pulls along ``f_j - w_i``, summed by two matrix products.

    A product cannot form ``f - w`` for a token that sits on a prototype. So the pull towards the nearest is taken out
    and applied along the offset itself, or is 0 where that is mere rounding; the others are bounded at the distance
    below which rounding would point them anywhere.
    """
    tokens = saved.tokens
    shortest_useful = torch.finfo(tokens.dtype).eps ** 0.5
    # In place: on the CPU, fresh memory for every step costs more than the arithmetic.
    pull = grad_logits.mul_((scale * -saved.epsilon)[..., None]).div_(distances.clamp_min_(shortest_useful))
    along_offset: Tensor | None = None
    if saved.nearest.prototype.numel():
        index, shortest = saved.nearest
        nearest_pull = pull.gather(-1, index[..., None])[..., 0] * shortest.clamp_min(shortest_useful)
        pull = pull.scatter(-1, index[..., None], 0)
        # An offset of rounding size, as k-center initialisation leaves it, has no direction worth following.
        apart = shortest > 8 * torch.finfo(tokens.dtype).eps
        nearest_pull = torch.where(apart, nearest_pull / shortest, 0)
        # Not in place: under vmap the pulls are many and the offset is one.
        along_offset = offsets(tokens, scale, clipped, index) * nearest_pull[..., None]
    # Clipping projects the gradient to the sphere: what points along the token has no effect on where it ends. That
    # part, the sum of pull (f . (f - w)), follows from the squared distances without another pass over the tokens.
    total = pull.sum(-1)
    squared_norm = (saved.norm * scale).square()
    along = 0.5 * (total * squared_norm - pull @ clipped.square().sum(-1) + (squared * pull).sum(-1))
    grad_clipped = torch.matmul(pull, -clipped)
    if along_offset is not None:
        grad_clipped += along_offset
        along = along + (along_offset * tokens).sum(-1) * scale
    kept = (total - torch.where(saved.norm > 1, along, 0)) * scale
    grad_tokens = torch.addcmul(grad_clipped, tokens, kept[..., None])

    pulls = scale.reciprocal().flatten() @ pull.flatten(0, 1)
    grad_prototypes = clipped * pulls[:, None] - pull.flatten(0, 1).t() @ tokens.flatten(0, 1)
    if along_offset is not None:
        unscaled = along_offset.div_(scale[..., None]).flatten(0, 1)
        grad_prototypes = grad_prototypes.index_add(0, saved.nearest.prototype.flatten(), unscaled, alpha=-1)
    prototype_norm = torch.linalg.vector_norm(saved.prototypes, dim=-1)
    along = torch.where(prototype_norm > 1, (grad_prototypes * clipped).sum(-1), 0)
    grad_prototypes = (grad_prototypes - clipped * along[:, None]) * clip_scale(saved.prototypes)[:, None]
    return grad_tokens, grad_prototypes
