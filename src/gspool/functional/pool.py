"""Generalized Sum Pooling: tokens and prototypes to one vector, its weights and its attributes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from torch.autograd.function import once_differentiable

from gspool.functional.checks import (
    check_mask,
    check_tokens,
    computing_dtype,
    epsilon_tensor,
    full_precision,
    mu_tensor,
    values_can_be_read,
)
from gspool.functional.cost import Nearest, distances_by_product
from gspool.functional.kernels import dispatch
from gspool.functional.kernels.dispatch import (
    DOT_PRECISION,
    Backend,
    Precision,
    check_precision,
    kernel_scalars,
    uses_kernels,
)
from gspool.functional.pool_gradient import Plan, Saved, assign, pool_gradient
from gspool.functional.results import Incoming, Pooled, Wanted
from gspool.functional.shares import normalised, shares
from gspool.functional.threshold import threshold

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from torch import Tensor

Role = Literal["foreground", "background"]
ROLES = get_args(Role)
# On the CPU, distances and assignments of at most so many bytes are kept for the backward pass; more are recomputed.
KEPT_ON_CPU = 64 * 2**20


def gsp_pool(
    tokens: Float[Tensor, "B N D"],
    prototypes: Float[Tensor, "M D"],
    mu: float | Float[Tensor, B],
    epsilon: float | Float[Tensor, ""],
    mask: Bool[Tensor, "B N"] | None = None,
    backend: Backend = "auto",
    role: Role = "foreground",
    precision: Precision = "exact",
) -> Pooled:
    """Pool the part ``mu`` of the tokens that lies nearest to the prototypes (eq. 4.1 with the solution of (P2)).

    The same as `distance`, then `partial_transport`, then a weighted sum, and differentiable once in tokens,
    prototypes, mu and epsilon; but no tensor of size B x M x N is kept for the backward pass, which recomputes the
    distances and forms the gradients by two matrix products. (On the CPU up to 64 MB are kept, which is faster.)

    Args:
        tokens: the features to pool.
        prototypes: what to look for; clipped to the unit ball, as the tokens are, before they are compared.
        mu: the part of the mass to pool, in (0, 1]; a number, or one for each image. 1 is average pooling.
        epsilon: the sharpness, from 0 to 1e6; it multiplies the distance. 0 is average pooling too.
        mask: True marks a real token; what a padded token holds is never read.
        backend: ``torch``, the plain version; ``triton``, the same by fused kernels, on a CUDA device of compute
            capability 8.0 or newer for float32, bfloat16 and float16 with at most 1024 prototypes, outside `torch.func`
            transforms (an export takes ``torch``); or ``auto``, the kernels wherever they can run.
        role: ``foreground`` pools what is near the prototypes, ``background`` what is left over.
        precision: how the kernels multiply: ``exact`` keeps the digits of float32 by three TF32 products, ``tf32``
            takes one, whose error, times epsilon, moves the weights. The plain version is always exact.

    Returns:
        ``Pooled(pooled, weights, attributes)``: the vector in the dtype of the tokens, the weights of the tokens and
        the marginal of the prototypes, each summing to 1, in float32 at least.

    Raises:
        ValueError: for wrong shapes, types, devices or ranges, with what was expected.

    Example:
        >>> tokens = torch.tensor([[[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [-1.0, 0.0]]])
        >>> out = gsp_pool(tokens, prototypes=torch.tensor([[1.0, 0.0]]), mu=0.5, epsilon=20.0)
        >>> [round(w, 3) for w in out.weights[0].tolist()]
        [0.5, 0.0, 0.5, 0.0]
    """
    check_tokens(tokens, prototypes)
    check_mask(mask, tokens.shape[:2], tokens.device)
    check_precision(precision)
    if role not in ROLES:
        raise ValueError(f"role must be one of {', '.join(ROLES)}, got {role!r}")
    if role == "background" and not isinstance(mu, torch.Tensor) and mu == 1:
        raise ValueError("with mu = 1 nothing is left for the background; choose mu below 1 or role='foreground'")
    dtype = computing_dtype(tokens, prototypes)
    if uses_kernels(backend, prototypes.shape[0], tokens, prototypes):
        checked_mu, checked_epsilon = kernel_scalars(mu, epsilon, tokens.shape[:1], tokens.device)
        return Pooled(
            *dispatch.pool(
                tokens,
                prototypes,
                checked_mu,
                checked_epsilon,
                mask,
                role == "background",
                DOT_PRECISION[precision],
            )
        )
    mu = mu_tensor(mu, tokens.shape[:1], tokens.device)
    epsilon = epsilon_tensor(epsilon, dtype, tokens.device)
    eager_on_cpu = values_can_be_read(tokens)
    keep = eager_on_cpu and 2 * _bytes_of_plan(tokens, prototypes, dtype) <= KEPT_ON_CPU
    # On the CPU, one copy of a transposed feature map costs less than seven passes over it.
    wide = tokens.to(dtype).contiguous() if eager_on_cpu else tokens.to(dtype)
    if mask is not None:
        # Padding may hold anything, and 0 times NaN is NaN.
        wide = wide.masked_fill(~mask[..., None], 0)
    pooled, weights, attributes, *_ = _GSPPool.apply(
        wide, prototypes.to(dtype), mu, epsilon, mask, role == "background", keep
    )
    return Pooled(pooled.to(tokens.dtype), weights, attributes)


def _bytes_of_plan(tokens: Tensor, prototypes: Tensor, dtype: torch.dtype) -> int:
    return tokens.shape[0] * tokens.shape[1] * prototypes.shape[0] * dtype.itemsize


class _GSPPool(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(
        tokens: Tensor,
        prototypes: Tensor,
        mu: Tensor,
        epsilon: Tensor,
        mask: Tensor | None,
        background: bool,
        keep: bool,
    ) -> tuple[Tensor, ...]:
        with full_precision(tokens):
            distances, norm, nearest = distances_by_product(tokens, prototypes)
            assignment, log_affinity = assign(distances, epsilon)
            position = threshold(log_affinity, mu, mask)[..., None] + log_affinity
            given, kept = shares(position, mask)
            # Dividing by the sums, which are n mu and n (1 - mu) up to rounding, makes the weights sum to 1.
            mass = normalised(given)
            weights = normalised(kept) if background else mass
            pooled = torch.bmm(weights[:, None, :], tokens)[:, 0]
            attributes = torch.bmm(mass[:, None, :], assignment)[:, 0]
            large = (distances, assignment) if keep else ()
            return pooled, weights, attributes, norm, position, *nearest, *large

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        tokens, prototypes, mu, epsilon, mask, background, _ = inputs
        _, _, _, *kept_back = output
        ctx.mark_non_differentiable(*kept_back)
        # Most losses look at one output; an output without a gradient comes as None and costs nothing.
        ctx.set_materialize_grads(False)
        ctx.background = background
        ctx.save_for_backward(tokens, prototypes, mu, epsilon, mask, *kept_back)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *incoming: Tensor | None) -> tuple[Tensor | None, ...]:
        tokens, prototypes, mu, epsilon, mask, norm, position, rows, prototype, shortest, *large = ctx.saved_tensors
        nearest = Nearest(rows, prototype, shortest)
        plan = Plan(*large) if large else None
        saved = Saved(tokens, prototypes, mu, epsilon, mask, norm, position, nearest, plan)
        with full_precision(saved.tokens):
            gradient = pool_gradient(saved, Incoming(*incoming[:3]), ctx.background, Wanted(*ctx.needs_input_grad[:4]))
        return *gradient, None, None, None
