"""The kernels of `gsp_pool` in eager calls, without PyTorch's dispatcher, which costs more than the kernels do."""

from __future__ import annotations

import functools
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.function import once_differentiable

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from torch import Tensor

_NOTHING_TO_DO = nullcontext()


@functools.cache
def launchers() -> tuple[Any, Any, Any]:
    """Import the modules that need Triton, when the first kernel runs."""
    from gspool.functional.kernels import pool_backward_launch, pool_forward_launch, pool_settings

    return pool_forward_launch, pool_backward_launch, pool_settings.Settings


def on_device_of(tensor: Tensor) -> AbstractContextManager[Any]:
    """Make the tensor's device the current one, which it nearly always is."""
    if tensor.device.type == "cuda" and tensor.device.index != torch.cuda.current_device():
        return torch.cuda.device(tensor.device)
    return _NOTHING_TO_DO


class EagerPool(torch.autograd.Function):
    """The same without the dispatcher.

    PyTorch runs the backward function in a thread of its own, on another core, where every Python object that the
    forward pass has touched is far away. So it does little, and finds ready what the forward pass can know.
    """

    @staticmethod
    def forward(
        ctx: Any,
        tokens: Tensor,
        prototypes: Tensor,
        mu: Tensor | None,
        epsilon: Tensor | None,
        settings: Any,
        keep: int,
    ) -> tuple[Tensor, ...]:
        """Give pooled, weights and attributes."""
        with on_device_of(tokens):
            (*results, kept, clipped), plan = launchers()[0].pool_forward(tokens, prototypes, settings, keep)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(tokens, prototypes, kept, clipped, mu, epsilon, settings.mask)
        # Tensors are left to `save_for_backward`, which sees when somebody changes them.
        ctx.call = settings._replace(mu=None, epsilon=None, mask=None), keep, plan.kind
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *incoming: Tensor | None) -> tuple[Tensor | None, ...]:
        """Give the gradients of the inputs, None for what is not a tensor."""
        # Only where somebody records this pass is there a second gradient to refuse.
        if torch.is_grad_enabled():
            recorded: tuple[Tensor | None, ...] = _gradients_once(ctx, *incoming)
            return recorded
        return _gradients(ctx, *incoming)


def _gradients(ctx: Any, *incoming: Tensor | None) -> tuple[Tensor | None, ...]:
    tokens, prototypes, kept, clipped, mu, epsilon, mask = ctx.saved_tensors
    settings, keep, kind = ctx.call
    if mu is not None or epsilon is not None or mask is not None:
        settings = settings._replace(mu=mu, epsilon=epsilon, mask=mask)
    launch = launchers()[1]
    with on_device_of(tokens):
        gradients = launch.pool_backward(
            tokens, prototypes, settings, keep, kept, clipped,
            launch.Incoming(*incoming), launch.Wanted(*ctx.needs_input_grad[:4]), kind,
        )  # fmt: skip
    return (*gradients, None, None)


_gradients_once = once_differentiable(_gradients)
