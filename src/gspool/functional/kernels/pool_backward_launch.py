"""Start the backward kernels of `gsp_pool`: allocate, look up the plan of the call, launch; nothing waits."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from gspool.functional.kernels.backward_plan import BackwardKind, Wanted, plan_backward
from gspool.functional.kernels.pool_settings import Kind, Settings, addressable, kind_of, misalignment, ready

if TYPE_CHECKING:
    from torch import Tensor


class Incoming(NamedTuple):
    """Gradients of the loss with respect to the three outputs; None where the loss does not depend on one."""

    pooled: Tensor | None
    weights: Tensor | None
    attributes: Tensor | None


def pool_backward(
    tokens: Tensor,
    prototypes: Tensor,
    settings: Settings,
    keep: int,
    kept: Tensor,
    clipped: Tensor,
    incoming: Incoming,
    wanted: Wanted,
    kind: Kind | None = None,
) -> tuple[Tensor | None, ...]:
    """Give the gradients of tokens, prototypes, mu (one an image) and epsilon; None where not wanted.

    Whoever knows the kind of the forward pass spares the backward pass from finding it out again.
    """
    B, _, D = tokens.shape
    M = prototypes.shape[0]
    grad_tokens = torch.empty_like(tokens) if wanted.tokens else None
    tokens, contiguous, settings = addressable(tokens), prototypes.contiguous(), ready(settings)
    grad_pooled = tokens.new_zeros((B, D)) if incoming.pooled is None else incoming.pooled.contiguous()
    grad_weights = None if incoming.weights is None else incoming.weights.contiguous()
    grad_attributes = None if incoming.attributes is None else incoming.attributes.contiguous()
    if kind is None:
        kind = kind_of(tokens, contiguous, settings)
    back = BackwardKind(
        keep,
        (0, 0, 0) if grad_tokens is None else grad_tokens.stride(),
        grad_weights is not None,
        grad_attributes is not None,
        wanted,
        not torch.are_deterministic_algorithms_enabled(),
        misalignment(grad_pooled, grad_weights, grad_attributes),
    )
    plan = plan_backward(kind, back)
    grad_mu = tokens.new_empty(B, dtype=torch.float64) if wanted.mu else None
    by_tile = tokens.new_empty(plan.works, dtype=torch.float32) if wanted.epsilon else None
    factors = tokens.new_empty(plan.factors, dtype=torch.float32) if plan.factors else None
    accumulated = None
    if wanted.prototypes:
        # The kernel that forms no products itself clears the sums on its way.
        create = tokens.new_empty if plan.slices else tokens.new_zeros
        accumulated = create((plan.parts, M * D + M), dtype=torch.float32)
    if B > 0:
        mu, mu_value, epsilon, epsilon_value, mask, *_ = settings
        plan.tiles(
            tokens, contiguous, clipped, kept, mask, mu, epsilon, grad_pooled, grad_weights, grad_attributes,
            grad_tokens, accumulated, factors, grad_mu, by_tile, mu_value, 1.0 - mu_value, epsilon_value,
        )  # fmt: skip
        for part in plan.slices:
            part(tokens, clipped, kept, mask, grad_pooled, grad_tokens, factors, accumulated)
        if plan.near is not None:
            plan.near(tokens, contiguous, kept, mask, grad_tokens, factors, accumulated)
    grad_prototypes = None
    if accumulated is not None:
        grad_prototypes = _prototype_gradient_memory(prototypes, accumulated)
        if B > 0:
            plan.finish(contiguous, kept, accumulated, grad_prototypes)
        else:
            grad_prototypes.zero_()
    return grad_tokens, grad_prototypes, grad_mu, None if by_tile is None else by_tile.sum()


def _prototype_gradient_memory(prototypes: Tensor, accumulated: Tensor) -> Tensor:
    """Reuse the sums' own memory for the result where there is one part and the dtype fits: nothing extra is held."""
    if accumulated.shape[0] == 1 and prototypes.dtype == torch.float32:
        return accumulated.as_strided(prototypes.shape, (prototypes.shape[1], 1))
    return torch.empty(prototypes.shape, dtype=prototypes.dtype, device=prototypes.device)
