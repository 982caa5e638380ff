"""The kernels of `gsp_pool` as PyTorch operators: one node for `torch.compile`, with shapes and a gradient.

Eager calls take a shorter way to the same functions (`pool_eager`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from gspool.functional.kernels.pool_eager import EagerPool, launchers, on_device_of

if TYPE_CHECKING:
    from torch import Tensor

_LIBRARY = torch.library.Library("gspool", "FRAGMENT")
_SETTINGS = (
    "Tensor? mu, float mu_value, Tensor? epsilon, float epsilon_value, Tensor? mask, bool background, str precision"
)
_LIBRARY.define(
    f"pool_forward(Tensor tokens, Tensor prototypes, {_SETTINGS}, int keep) -> (Tensor, Tensor, Tensor, Tensor, Tensor)"
)
_LIBRARY.define(
    f"pool_backward(Tensor tokens, Tensor prototypes, {_SETTINGS}, int keep, Tensor kept, Tensor clipped,"
    " Tensor? grad_pooled, Tensor? grad_weights, Tensor? grad_attributes,"
    " bool want_tokens, bool want_prototypes, bool want_mu, bool want_epsilon) -> (Tensor, Tensor, Tensor, Tensor)"
)


def _forward(tokens: Tensor, prototypes: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    launch, _, settings = launchers()
    with on_device_of(tokens):
        output, _ = launch.pool_forward(tokens, prototypes, settings(*rest[:7]), rest[7])
    tensors: tuple[Tensor, ...] = output
    return tensors


def _backward(tokens: Tensor, prototypes: Tensor, *rest: Any) -> tuple[Tensor | None, ...]:
    _, launch, settings = launchers()
    with on_device_of(tokens):
        gradients: tuple[Tensor | None, ...] = launch.pool_backward(
            tokens,
            prototypes,
            settings(*rest[:7]),
            *rest[7:10],
            launch.Incoming(*rest[10:13]),
            launch.Wanted(*rest[13:]),
        )
    return gradients


def _backward_operator(tokens: Tensor, prototypes: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    """Give an empty tensor for a gradient that is not wanted: an operator cannot return None."""
    gradients = _backward(tokens, prototypes, *rest)
    nothing = (tokens, prototypes, None, None)
    return tuple(
        (torch.empty(0, device=tokens.device) if like is None else like.new_empty(0)) if gradient is None else gradient
        for gradient, like in zip(gradients, nothing, strict=True)
    )


def _forward_shapes(tokens: Tensor, prototypes: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    from gspool.functional.kernels.kept import kept_layout
    from gspool.functional.kernels.pool_settings import Settings, kept_sums, kind_without_data

    B, N, D = tokens.shape
    M = prototypes.shape[0]
    kind = kind_without_data(tokens, prototypes, Settings(*rest[:7]))
    floats: dict[str, Any] = {"dtype": torch.float32, "device": tokens.device}
    return (
        tokens.new_empty((B, D)),
        torch.empty((B, N), **floats),
        torch.empty((B, M), **floats),
        torch.empty(kept_layout(B, N, D, M, kept_sums(kind, rest[7])).length, **floats),
        tokens.new_empty((kind.parts, M, D)),
    )


def _backward_shapes(tokens: Tensor, prototypes: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    want_tokens, want_prototypes, want_mu, want_epsilon = rest[-4:]
    floats: dict[str, Any] = {"dtype": torch.float32, "device": tokens.device}
    return (
        torch.empty_like(tokens) if want_tokens else tokens.new_empty(0),
        prototypes.new_empty(prototypes.shape if want_prototypes else (0,)),
        tokens.new_empty(tokens.shape[:1], dtype=torch.float64) if want_mu else torch.empty(0, **floats),
        torch.empty(() if want_epsilon else (0,), **floats),
    )


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    tokens, prototypes, mu, mu_value, epsilon, epsilon_value, mask, background, precision, keep = inputs
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(*output[3:])
    ctx.save_for_backward(tokens, prototypes, mu, epsilon, mask, *output[3:])
    ctx.values = mu_value, epsilon_value, background, precision, keep


def _differentiate(ctx: Any, *incoming: Tensor | None) -> tuple[Tensor | None, ...]:
    tokens, prototypes, mu, epsilon, mask, kept, clipped = ctx.saved_tensors
    mu_value, epsilon_value, background, precision, keep = ctx.values
    want_tokens, want_prototypes, want_mu, _, want_epsilon, *_ = ctx.needs_input_grad
    grad_tokens, grad_prototypes, grad_mu, grad_epsilon = torch.ops.gspool.pool_backward(
        tokens, prototypes, mu, mu_value, epsilon, epsilon_value, mask, background, precision, keep,
        kept, clipped, *incoming[:3], want_tokens, want_prototypes, want_mu, want_epsilon,
    )  # fmt: skip
    gradients = (grad_tokens, grad_prototypes, grad_mu, None, grad_epsilon, None, None, None, None, None)
    return tuple(gradient if wanted else None for gradient, wanted in zip(gradients, ctx.needs_input_grad, strict=True))


def _refuse_second_gradient(ctx: Any, *_: Any) -> Any:
    raise RuntimeError(
        "the Triton kernels of gsp_pool are differentiable once, as the plain version is; compute a second derivative "
        "from gspool.functional.distance and finite differences of the first"
    )


_LIBRARY.impl("pool_forward", _forward, "CompositeExplicitAutograd")
_LIBRARY.impl("pool_backward", _backward_operator, "CompositeExplicitAutograd")
torch.library.register_fake("gspool::pool_forward", _forward_shapes, lib=_LIBRARY)
torch.library.register_fake("gspool::pool_backward", _backward_shapes, lib=_LIBRARY)
torch.library.register_autograd("gspool::pool_forward", _differentiate, setup_context=_save, lib=_LIBRARY)
torch.library.register_autograd("gspool::pool_backward", _refuse_second_gradient, lib=_LIBRARY)


def pool(
    tokens: Tensor,
    prototypes: Tensor,
    mu: float | Tensor,
    epsilon: float | Tensor,
    mask: Tensor | None,
    background: bool,
    precision: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """Give pooled, weights and attributes by the kernels; plain numbers travel as such, so that none is copied over."""
    mu_tensor = mu if isinstance(mu, torch.Tensor) else None
    epsilon_tensor = epsilon if isinstance(epsilon, torch.Tensor) else None
    keep = 0
    if torch.is_grad_enabled():
        if mu_tensor is not None and mu_tensor.requires_grad:
            keep = 2
        elif tokens.requires_grad or prototypes.requires_grad or getattr(epsilon, "requires_grad", False):
            keep = 1
    values = (
        mu_tensor,
        0.5 if mu_tensor is not None else float(mu),
        epsilon_tensor,
        0.0 if epsilon_tensor is not None else float(epsilon),
        mask,
        background,
        precision,
    )
    if torch.compiler.is_compiling() or type(tokens) not in (torch.Tensor, torch.nn.Parameter):
        pooled, weights, attributes, *_ = torch.ops.gspool.pool_forward(tokens, prototypes, *values, keep)
    elif keep:
        settings = launchers()[2](*values)
        pooled, weights, attributes = EagerPool.apply(tokens, prototypes, mu_tensor, epsilon_tensor, settings, keep)
    else:
        pooled, weights, attributes, *_ = _forward(tokens, prototypes, *values, keep)
    return pooled, weights, attributes
