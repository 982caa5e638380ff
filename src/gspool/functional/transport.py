"""(P2): entropy-smoothed partial transport of the tokens' mass to the prototypes, solved exactly."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.function import once_differentiable

from gspool.functional.checks import (
    check_cost,
    check_mask,
    computing_dtype,
    epsilon_tensor,
    full_precision,
    mu_tensor,
)
from gspool.functional.kernels import dispatch
from gspool.functional.kernels.dispatch import Backend, kernel_scalars, uses_kernels
from gspool.functional.results import Transport
from gspool.functional.shares import share_gradient, shares, token_count
from gspool.functional.threshold import threshold

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from torch import Tensor

# Costs may be of any size, so that only what float32 cannot hold is too sharp.
MOST_EPSILON_OF_COSTS = 1e30


def partial_transport(
    cost: Float[Tensor, "*B M N"],
    mu: float | Float[Tensor, "*B"],
    epsilon: float | Float[Tensor, ""],
    mask: Bool[Tensor, "*B N"] | None = None,
    backend: Backend = "auto",
) -> Transport:
    r"""Carry the part ``mu`` of the tokens' mass to the prototypes at the least smoothed cost (P2).

    With ``l_j = log sum_i exp(-epsilon c_ij)``, ``a_j = sigmoid(tau + l_j)`` and the one scalar tau of each image that
    makes ``mean_j a_j = mu``: ``residual_j = (1 - a_j) / n`` and ``plan_ij = a_j / n softmax_i(-epsilon c_ij)``.
    Differentiable once with respect to ``cost``, ``mu`` and ``epsilon`` by the closed form of Prop. 4.3.

    Args:
        cost: what it costs to carry a unit of mass from token j to prototype i.
        mu: the part of the mass to carry, in (0, 1]; a number, or one for each image. 1 is average pooling.
        epsilon: the sharpness, >= 0; it multiplies the cost. 0 ignores the cost, large values pick the nearest.
        mask: True marks a real token; the others hold no mass.
        backend: ``torch``, ``triton`` or ``auto``, as in `gsp_pool`; any number of prototypes.

    Returns:
        ``Transport(residual, plan)``, in float32 for half-precision costs, whose digits could not hold ``1 / n``.

    Raises:
        ValueError: for wrong shapes, types, devices or ranges, with what was expected.

    Example:
        >>> import torch
        >>> cost = torch.tensor([[0.0, 0.1, 2.0, 2.0]])  # one prototype, two near tokens, two far ones
        >>> residual, plan = partial_transport(cost, mu=0.5, epsilon=20.0)
        >>> [round(4 * mass, 3) for mass in plan[0].tolist()]
        [1.0, 1.0, 0.0, 0.0]
    """
    check_cost(cost)
    check_mask(mask, (*cost.shape[:-2], cost.shape[-1]), cost.device)
    dtype = computing_dtype(cost)
    if uses_kernels(backend, 0, cost):
        checked_mu, checked_epsilon = kernel_scalars(mu, epsilon, cost.shape[:-2], cost.device, MOST_EPSILON_OF_COSTS)
        return Transport(*dispatch.transport(cost, checked_mu, checked_epsilon, mask))
    mu = mu_tensor(mu, cost.shape[:-2], cost.device)
    epsilon = epsilon_tensor(epsilon, dtype, cost.device, MOST_EPSILON_OF_COSTS)
    residual, plan, *_ = _PartialTransport.apply(cost.to(dtype), mu, epsilon, mask)
    return Transport(residual, plan)


class _PartialTransport(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(cost: Tensor, mu: Tensor, epsilon: Tensor, mask: Tensor | None) -> tuple[Tensor, ...]:
        with full_precision(cost):
            logits = -epsilon * cost
            log_affinity = torch.logsumexp(logits, dim=-2)
            position = threshold(log_affinity, mu, mask)[..., None] + log_affinity
            given, kept = shares(position, mask)
            count = token_count(position, mask)[..., None].clamp_min(1)
            plan = torch.softmax(logits, dim=-2) * (given / count)[..., None, :]
            return kept / count, plan, position

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        cost, mu, epsilon, mask = inputs
        position = output[2]
        ctx.mark_non_differentiable(position)
        ctx.save_for_backward(cost, mu, epsilon, mask, position)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_residual: Tensor, grad_plan: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        cost, mu, epsilon, mask, position = ctx.saved_tensors
        with full_precision(cost):
            each = token_count(position, mask)[..., None].clamp_min(1)
            assignment = torch.softmax(-epsilon * cost, dim=-2)
            mean_grad_plan = (assignment * grad_plan).sum(-2)
            root = share_gradient(mean_grad_plan - grad_residual, position, each[..., 0], mask)
            mass = shares(position, mask).given / each
            centred = grad_plan - mean_grad_plan[..., None, :]
            grad_logits = assignment * (mass[..., None, :] * centred + root.log_affinity[..., None, :])
            grad_epsilon = -(grad_logits * cost).sum() if ctx.needs_input_grad[2] else None
            return -epsilon * grad_logits, root.mean.to(mu.dtype), grad_epsilon, None
