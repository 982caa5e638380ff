"""The published algorithms, kept readable, to test against and to measure against. Use `partial_transport` instead.

The fixed point converges slowly, or not at all, as mu -> 1, and the closed-form gradient holds only at the solution:
with too few steps the gradient is wrong as well. Both are shown in docs/math.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from gspool.functional.results import Transport

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor


def fixed_point_transport(cost: Float[Tensor, "*B M N"], mu: float, epsilon: float, steps: int = 100) -> Transport:
    """Iterate Prop. 4.2 from ``t = 1``; automatic differentiation unrolls every step.

    Example:
        >>> residual, plan = fixed_point_transport(torch.tensor([[0.0, 0.0, 2.0, 2.0]]), mu=0.3, epsilon=20.0)
        >>> [round(4 * mass, 3) for mass in plan[0].tolist()]
        [0.6, 0.6, 0.0, 0.0]
    """
    tokens = cost.shape[-1]
    kernel = torch.exp(-epsilon * cost)
    t = cost.new_ones((*cost.shape[:-2], 1))
    for _ in range(steps):
        # As printed, both products are formed anew in every step.
        residual = 1 / (tokens * (1 + t * kernel.sum(-2)))
        t = mu / (kernel @ residual[..., None]).sum(-2)
    return Transport(residual, t[..., None] * kernel * residual[..., None, :])


def hoisted_fixed_point_transport(
    cost: Float[Tensor, "*B M N"], mu: float, epsilon: float, steps: int = 100
) -> Transport:
    """Iterate Prop. 4.2 with the sum over prototypes, the same in every step, taken out of the loop."""
    tokens = cost.shape[-1]
    kernel = torch.exp(-epsilon * cost)
    affinity = kernel.sum(-2)
    t = cost.new_ones((*cost.shape[:-2], 1))
    for _ in range(steps):
        residual = 1 / (tokens * (1 + t * affinity))
        t = mu / (affinity * residual).sum(-1, keepdim=True)
    return Transport(residual, t[..., None] * kernel * residual[..., None, :])


def closed_form_transport(
    cost: Float[Tensor, "*B M N"], mu: float, epsilon: float, steps: int = 100, hoisted: bool = False
) -> Transport:
    """Iterate Prop. 4.2 and differentiate by Prop. 4.3, read as ``Diag(q - eta / (1 - mu - n rho'rho) rho)``.

    As printed, the parenthesis closes before rho; the gradient is then off by as much as its own size.
    """
    return Transport(*_ClosedForm.apply(cost, mu, epsilon, steps, hoisted))


class _ClosedForm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, cost: Tensor, mu: float, epsilon: float, steps: int, hoisted: bool) -> tuple[Tensor, Tensor]:
        iterate = hoisted_fixed_point_transport if hoisted else fixed_point_transport
        residual, plan = iterate(cost, mu, epsilon, steps)
        ctx.save_for_backward(residual, plan)
        ctx.mu, ctx.epsilon = mu, epsilon
        return residual, plan

    @staticmethod
    def backward(ctx: Any, grad_residual: Tensor, grad_plan: Tensor) -> tuple[Tensor | None, ...]:
        residual, plan = ctx.saved_tensors
        tokens = residual.shape[-1]
        q = residual * grad_residual + (plan * grad_plan).sum(-2)
        eta = (residual * grad_residual).sum(-1) - tokens * (q * residual).sum(-1)
        denominator = 1 - ctx.mu - tokens * residual.square().sum(-1)
        through_constraints = q - (eta / denominator)[..., None] * residual
        return -ctx.epsilon * (plan * grad_plan - tokens * plan * through_constraints[..., None, :]), *[None] * 4
