"""The kernels of `partial_transport` as PyTorch operators: one node for `torch.compile`, with shapes and a gradient."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch import Tensor

_LIBRARY = torch.library.Library("gspool", "FRAGMENT")
_SCALARS = "Tensor? mu, float mu_value, Tensor? epsilon, float epsilon_value, Tensor? mask"
_LIBRARY.define(f"transport_forward(Tensor cost, {_SCALARS}) -> (Tensor, Tensor, Tensor, Tensor)")
_LIBRARY.define(
    f"transport_backward(Tensor cost, {_SCALARS}, Tensor affinities, Tensor summary,"
    " Tensor? grad_residual, Tensor? grad_plan, bool want_epsilon) -> (Tensor, Tensor, Tensor)"
)


def _forward(cost: Tensor, *scalars: Any) -> tuple[Tensor, ...]:
    from gspool.functional.kernels import transport_launch

    with torch.cuda.device_of(cost):
        return transport_launch.transport_forward(cost, transport_launch.Scalars(*scalars))


def _backward(cost: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    from gspool.functional.kernels import transport_launch

    with torch.cuda.device_of(cost):
        return transport_launch.transport_backward(cost, transport_launch.Scalars(*rest[:5]), *rest[5:])


def _forward_shapes(cost: Tensor, *_: Any) -> tuple[Tensor, ...]:
    B, M, N = cost.shape
    floats: dict[str, Any] = {"dtype": torch.float32, "device": cost.device}
    shapes: tuple[tuple[int, ...], ...] = ((B, N), (B, M, N), (B, N), (B, 8))
    return tuple(torch.empty(shape, **floats) for shape in shapes)


def _backward_shapes(cost: Tensor, mu: Tensor | None, *rest: Any) -> tuple[Tensor, ...]:
    return (
        torch.empty(cost.shape, dtype=cost.dtype, device=cost.device),
        torch.empty(cost.shape[:1], dtype=torch.float64 if mu is None else mu.dtype, device=cost.device),
        torch.empty(() if rest[-1] else (0,), dtype=torch.float32, device=cost.device),
    )


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    cost, mu, mu_value, epsilon, epsilon_value, mask = inputs
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(*output[2:])
    ctx.save_for_backward(cost, mu, epsilon, mask, *output[2:])
    ctx.values = mu_value, epsilon_value


def _differentiate(ctx: Any, *incoming: Tensor | None) -> tuple[Tensor | None, ...]:
    cost, mu, epsilon, mask, affinities, summary = ctx.saved_tensors
    mu_value, epsilon_value = ctx.values
    _, want_mu, _, want_epsilon, *_ = ctx.needs_input_grad
    grad_cost, grad_mu, grad_epsilon = torch.ops.gspool.transport_backward(
        cost, mu, mu_value, epsilon, epsilon_value, mask, affinities, summary, *incoming[:2], want_epsilon
    )
    return grad_cost, grad_mu if want_mu else None, None, grad_epsilon if want_epsilon else None, None, None


def _refuse_second_gradient(ctx: Any, *_: Any) -> Any:
    raise RuntimeError(
        "the Triton kernels of partial_transport are differentiable once, as the plain version is; compute a second "
        "derivative by finite differences of the first"
    )


_LIBRARY.impl("transport_forward", _forward, "CompositeExplicitAutograd")
_LIBRARY.impl("transport_backward", _backward, "CompositeExplicitAutograd")
torch.library.register_fake("gspool::transport_forward", _forward_shapes, lib=_LIBRARY)
torch.library.register_fake("gspool::transport_backward", _backward_shapes, lib=_LIBRARY)
torch.library.register_autograd("gspool::transport_forward", _differentiate, setup_context=_save, lib=_LIBRARY)
torch.library.register_autograd("gspool::transport_backward", _refuse_second_gradient, lib=_LIBRARY)


def transport(cost: Tensor, mu: float | Tensor, epsilon: float | Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Give residual and plan of costs [..., M, N] by the kernels; plain numbers travel as such."""
    *batch, M, N = cost.shape
    residual, plan, *_ = torch.ops.gspool.transport_forward(
        cost.reshape(-1, M, N),
        mu.reshape(-1) if isinstance(mu, torch.Tensor) else None,
        0.5 if isinstance(mu, torch.Tensor) else float(mu),
        epsilon if isinstance(epsilon, torch.Tensor) else None,
        0.0 if isinstance(epsilon, torch.Tensor) else float(epsilon),
        None if mask is None else mask.reshape(-1, N),
    )
    return residual.view(*batch, N), plan.view(*batch, M, N)
