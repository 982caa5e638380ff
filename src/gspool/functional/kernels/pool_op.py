"""The kernels of `gsp_pool` as PyTorch operators: one node for `torch.compile`, with shapes and a gradient.

Eager calls take a shorter way to the same functions, because going through the dispatcher twice costs more than the
kernels do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.function import once_differentiable

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

_LIBRARY = torch.library.Library("gspool", "FRAGMENT")
_SETTINGS = (
    "Tensor? mu, float mu_value, Tensor? epsilon, float epsilon_value, Tensor? mask, bool background, str precision"
)
_LIBRARY.define(
    f"pool_forward(Tensor tokens, Tensor prototypes, {_SETTINGS}, bool keep)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)"
)
_LIBRARY.define(
    f"pool_backward(Tensor tokens, Tensor prototypes, {_SETTINGS},"
    " Tensor state, Tensor summary, Tensor w_norms, Tensor clipped,"
    " Tensor? grad_pooled, Tensor? grad_weights, Tensor? grad_attributes,"
    " bool want_tokens, bool want_prototypes, bool want_epsilon) -> (Tensor, Tensor, Tensor, Tensor)"
)


def _forward(tokens: Tensor, prototypes: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    from gspool.functional.kernels import pool_launch

    *settings, keep = rest
    with torch.cuda.device_of(tokens):
        return pool_launch.pool_forward(tokens, prototypes, pool_launch.Settings(*settings), keep)


def _backward(tokens: Tensor, prototypes: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    from gspool.functional.kernels import pool_launch

    with torch.cuda.device_of(tokens):
        return pool_launch.pool_backward(
            tokens,
            prototypes,
            pool_launch.Settings(*rest[:7]),
            pool_launch.Kept(*rest[7:11]),
            pool_launch.Incoming(*rest[11:14]),
            pool_launch.Wanted(*rest[14:]),
        )


def _forward_shapes(tokens: Tensor, prototypes: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    from gspool.functional.kernels.tiling import tiling_of

    keep = rest[-1]
    B, N, D = tokens.shape
    M = prototypes.shape[0]
    precision = rest[-2]
    backward_tiles = tiling_of(tokens, M, precision, backward=True).tiles
    parts = 2 if tokens.dtype != torch.float32 and precision != "tf32" else 1
    floats: dict[str, Any] = {"dtype": torch.float32, "device": tokens.device}
    return (
        tokens.new_empty((B, D)),
        torch.empty((B, N), **floats),
        torch.empty((B, M), **floats),
        torch.empty((B, 4, N) if keep else (0,), **floats),
        torch.empty((B, 8 + 2 * (D + M) if keep and backward_tiles > 1 else 8), **floats),
        torch.empty((M,), **floats),
        tokens.new_empty((parts, M, D)),
    )


def _backward_shapes(tokens: Tensor, prototypes: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    want_tokens, want_prototypes, want_epsilon = rest[-3:]
    floats: dict[str, Any] = {"dtype": torch.float32, "device": tokens.device}
    return (
        torch.empty_like(tokens) if want_tokens else tokens.new_empty(0),
        prototypes.new_empty(prototypes.shape if want_prototypes else (0,)),
        torch.empty(tokens.shape[:1], dtype=torch.float64, device=tokens.device),
        torch.empty(() if want_epsilon else (0,), **floats),
    )


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    tokens, prototypes, mu, mu_value, epsilon, epsilon_value, mask, background, precision, _ = inputs
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(*output[3:])
    ctx.save_for_backward(tokens, prototypes, mu, epsilon, mask, *output[3:])
    ctx.values = mu_value, epsilon_value, background, precision


def _differentiate(ctx: Any, *incoming: Tensor | None) -> tuple[Tensor | None, ...]:
    return _gradients(ctx, incoming, torch.ops.gspool.pool_backward)


def _gradients(
    ctx: Any, incoming: tuple[Tensor | None, ...], backward: Callable[..., tuple[Tensor, ...]]
) -> tuple[Tensor | None, ...]:
    tokens, prototypes, mu, epsilon, mask, state, summary, w_norms, clipped = ctx.saved_tensors
    mu_value, epsilon_value, background, precision = ctx.values
    want_tokens, want_prototypes, want_mu, _, want_epsilon, *_ = ctx.needs_input_grad
    grad_tokens, grad_prototypes, grad_mu, grad_epsilon = backward(
        tokens, prototypes, mu, mu_value, epsilon, epsilon_value, mask, background, precision,
        state, summary, w_norms, clipped, *incoming[:3], want_tokens, want_prototypes, want_epsilon,
    )  # fmt: skip
    return (
        grad_tokens if want_tokens else None,
        grad_prototypes if want_prototypes else None,
        grad_mu if want_mu else None,
        None,
        grad_epsilon if want_epsilon else None,
        *(None,) * 5,
    )


def _refuse_second_gradient(ctx: Any, *_: Any) -> Any:
    raise RuntimeError(
        "the Triton kernels of gsp_pool are differentiable once, as the plain version is; compute a second derivative "
        "from gspool.functional.distance and finite differences of the first"
    )


_LIBRARY.impl("pool_forward", _forward, "CompositeExplicitAutograd")
_LIBRARY.impl("pool_backward", _backward, "CompositeExplicitAutograd")
torch.library.register_fake("gspool::pool_forward", _forward_shapes, lib=_LIBRARY)
torch.library.register_fake("gspool::pool_backward", _backward_shapes, lib=_LIBRARY)
torch.library.register_autograd("gspool::pool_forward", _differentiate, setup_context=_save, lib=_LIBRARY)
torch.library.register_autograd("gspool::pool_backward", _refuse_second_gradient, lib=_LIBRARY)


class _EagerPool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, ...]:
        output = _forward(*inputs)
        _save(ctx, inputs, output)
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *incoming: Tensor | None) -> tuple[Tensor | None, ...]:
        return _gradients(ctx, incoming, _backward)


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
    differentiated = (tokens, prototypes, mu, epsilon)
    keep = torch.is_grad_enabled() and any(isinstance(t, torch.Tensor) and t.requires_grad for t in differentiated)
    inputs = (
        tokens,
        prototypes,
        mu if isinstance(mu, torch.Tensor) else None,
        0.5 if isinstance(mu, torch.Tensor) else float(mu),
        epsilon if isinstance(epsilon, torch.Tensor) else None,
        0.0 if isinstance(epsilon, torch.Tensor) else float(epsilon),
        mask,
        background,
        precision,
        keep,
    )
    if torch.compiler.is_compiling() or type(tokens) not in (torch.Tensor, torch.nn.Parameter):
        pooled, weights, attributes, *_ = torch.ops.gspool.pool_forward(*inputs)
    else:
        pooled, weights, attributes, *_ = _EagerPool.apply(*inputs) if keep else _forward(*inputs)
    return pooled, weights, attributes
