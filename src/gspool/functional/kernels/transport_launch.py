"""Start the kernels of `partial_transport`, forward and backward; nothing waits for the GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from gspool.functional.kernels.image_shares import image_shares_kernel
from gspool.functional.kernels.pool_forward_launch import ONE_BLOCK
from gspool.functional.kernels.transport import (
    cost_affinity_kernel,
    cost_gradient_kernel,
    plan_kernel,
    plan_mean_kernel,
    root_gradient_kernel,
)

if TYPE_CHECKING:
    from torch import Tensor

TILE_TOKENS, TILE_PROTOTYPES = 64, 32


def mask_strides(mask: Tensor | None) -> tuple[int, ...]:
    """Give the strides of a mask, or zeros that no kernel looks at."""
    return (0, 0) if mask is None else mask.stride()


class Scalars(NamedTuple):
    """mu, epsilon and the mask; a value stands for a tensor that is None."""

    mu: Tensor | None
    mu_value: float
    epsilon: Tensor | None
    epsilon_value: float
    mask: Tensor | None


def transport_forward(cost: Tensor, scalars: Scalars) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Give residual, plan, and for the backward pass the log-affinities and the sums of each image."""
    B, M, N = cost.shape
    floats: dict[str, Any] = {"dtype": torch.float32, "device": cost.device}
    residual, plan = torch.empty((B, N), **floats), torch.empty((B, M, N), **floats)
    affinities, summary = torch.empty((B, N), **floats), torch.empty((B, 8), **floats)
    if B == 0:
        return residual, plan, affinities, summary
    mu, mask, epsilon = scalars.mu, scalars.mask, scalars.epsilon
    mu = None if mu is None else mu.contiguous()
    mask = None if mask is None else mask.view(torch.uint8)
    T = -(-N // TILE_TOKENS)
    tile = {"BN": TILE_TOKENS, "BM": TILE_PROTOTYPES, "HAS_EPSILON": epsilon is not None}
    cost_affinity_kernel[(B * T,)](cost, epsilon, affinities, scalars.epsilon_value, M, N, T, *cost.stride(), **tile)
    block = min(ONE_BLOCK, 1 << (N - 1).bit_length())
    image_shares_kernel[(B,)](
        affinities, mask, mu, summary, residual, scalars.mu_value, 1.0 - scalars.mu_value,
        N, N, 0, 8, *mask_strides(mask),
        BLOCK=block, ONE_BLOCK=block >= N, HAS_MASK=mask is not None, HAS_MU=mu is not None,
        BACKGROUND=False, WEIGHTS=False, num_warps=min(16, max(4, block // 512)),
    )  # fmt: skip
    plan_kernel[(B * T,)](
        cost, mask, epsilon, affinities, summary, residual, plan, scalars.epsilon_value, M, N, T,
        *cost.stride(), *mask_strides(mask), **tile, HAS_MASK=mask is not None,
    )  # fmt: skip
    return residual, plan, affinities, summary


def transport_backward(
    cost: Tensor,
    scalars: Scalars,
    affinities: Tensor,
    summary: Tensor,
    grad_residual: Tensor | None,
    grad_plan: Tensor | None,
    want_epsilon: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Give the gradients of cost, mu (one an image) and epsilon; the last is empty where not wanted."""
    B, M, N = cost.shape
    T = -(-N // TILE_TOKENS)
    floats: dict[str, Any] = {"dtype": torch.float32, "device": cost.device}
    grad_cost = torch.empty((B, M, N), dtype=cost.dtype, device=cost.device)
    mu, mask, epsilon = scalars.mu, scalars.mask, scalars.epsilon
    grad_mu = torch.empty((B,), dtype=torch.float64 if mu is None else mu.dtype, device=cost.device)
    grad_epsilon = torch.empty((B * T if want_epsilon else 0,), **floats)
    if B == 0:
        return grad_cost, grad_mu, grad_epsilon.sum() if want_epsilon else grad_epsilon
    mask = None if mask is None else mask.view(torch.uint8)
    grad_residual = None if grad_residual is None else grad_residual.contiguous()
    grad_plan = None if grad_plan is None else grad_plan.contiguous()
    # A copy, because the kernels write the image's mean gradient beside its sums.
    summary = summary.clone()
    tile = {"BN": TILE_TOKENS, "BM": TILE_PROTOTYPES, "HAS_EPSILON": epsilon is not None}
    if grad_plan is None:
        means = torch.zeros((B, N), **floats)
    else:
        means = torch.empty((B, N), **floats)
        plan_mean_kernel[(B * T,)](
            cost, epsilon, affinities, grad_plan, means, scalars.epsilon_value, M, N, T, *cost.stride(), **tile
        )
    root_gradient_kernel[(B,)](
        affinities, mask, summary, means, grad_residual, grad_mu, N, *mask_strides(mask),
        BLOCK=min(4096, 1 << (N - 1).bit_length()), HAS_MASK=mask is not None, HAS_GR=grad_residual is not None,
    )  # fmt: skip
    cost_gradient_kernel[(B * T,)](
        cost, mask, epsilon, affinities, summary, means, grad_residual, grad_plan, grad_cost, grad_epsilon,
        scalars.epsilon_value, M, N, T, *cost.stride(), *mask_strides(mask), **tile, HAS_MASK=mask is not None,
        HAS_GR=grad_residual is not None, HAS_GP=grad_plan is not None, EPSILON=want_epsilon,
    )  # fmt: skip
    return grad_cost, grad_mu, grad_epsilon.sum() if want_epsilon else grad_epsilon
