"""The cost map by matrix products, for costs that are used apart from `gsp_pool`: prototypes in several groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.function import once_differentiable

from gspool.functional.checks import check_tokens, computing_dtype, full_precision
from gspool.functional.cost import Nearest, distances_by_product
from gspool.functional.kernels.dispatch import (
    DOT_PRECISION,
    PLAIN_TENSORS,
    Backend,
    Precision,
    check_precision,
    on_device_of,
    uses_kernels,
)
from gspool.functional.pool_gradient import through_distance
from gspool.functional.results import Wanted

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor


def product_distance(
    prototypes: Float[Tensor, "M D"],
    tokens: Float[Tensor, "B N D"],
    backend: Backend = "auto",
    precision: Precision = "exact",
) -> Float[Tensor, "B M N"]:
    """Compute the same as `gspool.functional.distance`, without its B x M x N x D tensor; differentiable once.

    ``backend`` and ``precision`` are those of `gsp_pool`. A compiled program takes the plain version, as subclasses of
    tensors do.

    Raises:
        ValueError: if the shapes, types or devices do not fit, for an unknown backend or precision, and for ``triton``
            where the kernel cannot run: with more than 1024 prototypes, those of all groups together, for one.

    Example:
        >>> product_distance(torch.tensor([[1.0, 0.0]]), torch.tensor([[[2.0, 0.0], [0.0, 0.5]]]))
        tensor([[[0.0000, 1.1180]]])
    """
    check_tokens(tokens, prototypes)
    check_precision(precision)
    plain = torch.compiler.is_compiling() or any(type(each) not in PLAIN_TENSORS for each in (tokens, prototypes))
    if uses_kernels("torch" if plain else backend, len(prototypes), tokens, prototypes):
        found: Tensor = _KernelDistance.apply(tokens, prototypes, DOT_PRECISION[precision])
        return found
    dtype = computing_dtype(tokens, prototypes)
    distances, *_ = _ProductDistance.apply(tokens.to(dtype), prototypes.to(dtype))
    return distances.mT


class _ProductDistance(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(tokens: Tensor, prototypes: Tensor) -> tuple[Tensor, ...]:
        with full_precision(tokens):
            distances, norm, nearest = distances_by_product(tokens, prototypes)
            return distances, norm, *nearest

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: tuple[Tensor, ...]) -> None:
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(*inputs, *output)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, *_: Tensor) -> tuple[Tensor | None, Tensor | None]:
        tokens, prototypes, distances, norm, *found = ctx.saved_tensors
        with full_precision(tokens):
            # A copy, because it is overwritten, and this one belongs to autograd.
            own = gradient.clone(memory_format=torch.contiguous_format)
            wanted = Wanted(*ctx.needs_input_grad)
            return through_distance(own, 1.0, distances, tokens, prototypes, norm, Nearest(*found), wanted)


class _KernelDistance(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tokens: Tensor, prototypes: Tensor, precision: str) -> Tensor:
        from gspool.functional.kernels.distance_map import distance_forward

        with on_device_of(tokens):
            distances, kept, clipped = distance_forward(tokens, prototypes, precision)
        ctx.precision = precision
        ctx.save_for_backward(tokens, prototypes, distances, kept, clipped)
        return distances

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        from gspool.functional.kernels.distance_map import distance_backward

        tokens, prototypes, distances, kept, clipped = ctx.saved_tensors
        with on_device_of(tokens):
            gradients = distance_backward(
                tokens, prototypes, ctx.precision, distances, kept, clipped, gradient, *ctx.needs_input_grad[:2]
            )
        return (*gradients, None)
