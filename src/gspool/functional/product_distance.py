"""The cost map by matrix products, for costs that are used apart from `gsp_pool`: prototypes in several groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.function import once_differentiable

from gspool.functional.checks import check_tokens, computing_dtype, full_precision
from gspool.functional.cost import Nearest, distances_by_product
from gspool.functional.pool_gradient import through_distance
from gspool.functional.results import Wanted

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor


def product_distance(prototypes: Float[Tensor, "M D"], tokens: Float[Tensor, "B N D"]) -> Float[Tensor, "B M N"]:
    """Compute the same as `gspool.functional.distance`, without its B x M x N x D tensor; differentiable once.

    Raises:
        ValueError: if the shapes, types or devices do not fit.

    Example:
        >>> product_distance(torch.tensor([[1.0, 0.0]]), torch.tensor([[[2.0, 0.0], [0.0, 0.5]]]))
        tensor([[[0.0000, 1.1180]]])
    """
    check_tokens(tokens, prototypes)
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
