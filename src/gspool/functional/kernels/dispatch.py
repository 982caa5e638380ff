"""From a call of `gsp_pool` or `partial_transport` to its kernels: which backend runs, and the operators PyTorch sees.

`torch.compile` sees one operator for each pass, with shapes and a gradient. Eager calls of `gsp_pool` take a shorter
way to the same functions, because PyTorch's dispatcher costs more than the kernels do. Triton is imported when the
first kernel runs.
"""

from __future__ import annotations

import functools
import importlib.util
import os
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from torch.autograd.function import once_differentiable

from gspool.functional.checks import MOST_EPSILON, check_epsilon, check_mu, epsilon_tensor, mu_tensor
from gspool.functional.results import Incoming, Wanted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from torch import Tensor

Backend = Literal["auto", "torch", "triton"]
Precision = Literal["exact", "tf32"]
# How Triton names them: three TF32 products carry the digits of float32.
DOT_PRECISION = {"exact": "tf32x3", "tf32": "tf32"}
KERNEL_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
MOST_PROTOTYPES = 1024
# A subclass may have no data that a kernel could read.
PLAIN_TENSORS = (torch.Tensor, torch.nn.Parameter)
BACKENDS, PRECISIONS = get_args(Backend), get_args(Precision)

TRITON_IS_INSTALLED = importlib.util.find_spec("triton") is not None
_known_devices: dict[int, bool] = {}


def _constant_when_compiled(function: Callable[..., bool]) -> Callable[..., bool]:
    """Mark a function as `torch.compiler.assume_constant_result` does, which would import the compiler: seconds."""
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


# The compiler must not trace the question into CUDA.
@_constant_when_compiled
def _matrix_units_fit(index: int) -> bool:
    """TF32 and bfloat16 products need an NVIDIA GPU of compute capability 8.0 or newer."""
    if index not in _known_devices:
        _known_devices[index] = torch.version.cuda is not None and torch.cuda.get_device_capability(index) >= (8, 0)
    return _known_devices[index]


def _interpreted() -> bool:
    return os.environ.get("TRITON_INTERPRET") == "1"


# Dynamo answers True in every compilation, and so must not be the one that is asked.
@_constant_when_compiled
def _exporting() -> bool:
    return torch.compiler.is_exporting()


def uses_kernels(backend: Backend, prototypes: int, *tensors: Tensor) -> bool:
    """Return whether the kernels run: for ``triton`` always, for ``torch`` never, for ``auto`` on a GPU that can.

    ``auto`` takes the kernels for tensors on a CUDA device wherever ``triton`` would not be refused.

    Raises:
        ValueError: for an unknown backend, and for ``triton`` where the kernels cannot run, with the reason.
    """
    if backend not in BACKENDS:
        raise ValueError(f"backend must be one of {', '.join(BACKENDS)}, got {backend!r}")
    # An exported program must run where there is no Triton.
    if backend == "torch" or _exporting():
        return False
    if backend == "auto":
        return tensors[0].device.type == "cuda" and _obstacle(prototypes, tensors) is None
    obstacle = _obstacle(prototypes, tensors)
    if obstacle is not None:
        raise ValueError(f"backend='triton' cannot run here: {obstacle}; use backend='torch' or 'auto'")
    return True


def _obstacle(prototypes: int, tensors: tuple[Tensor, ...]) -> str | None:
    device = tensors[0].device
    if not TRITON_IS_INSTALLED:
        return "Triton is not installed (it comes with PyTorch for CUDA on Linux)"
    if device.type != "cuda" and not _interpreted():
        return f"the tensors are on {device} and the kernels need a CUDA device"
    if device.type == "cuda" and not _matrix_units_fit(device.index):
        return "the kernels need an NVIDIA GPU of compute capability 8.0 or newer"
    for tensor in tensors:
        if tensor.dtype not in KERNEL_DTYPES:
            return f"the kernels take float32, bfloat16 and float16, got {tensor.dtype}"
        # A compiler traces the values below any transform, and cannot trace this question.
        if not torch.compiler.is_compiling() and torch._C._functorch.is_functorch_wrapped_tensor(tensor):
            return "the kernels have no rule for torch.func transforms"
    if prototypes > MOST_PROTOTYPES:
        return f"the kernels take up to {MOST_PROTOTYPES} prototypes, got {prototypes}"
    return None


def check_precision(precision: str) -> None:
    """Refuse an unknown precision."""
    if precision not in PRECISIONS:
        raise ValueError(f"precision must be one of {', '.join(PRECISIONS)}, got {precision!r}")


def kernel_scalars(
    mu: float | Tensor,
    epsilon: float | Tensor,
    shape: Sequence[int],
    device: torch.device,
    most_epsilon: float = MOST_EPSILON,
) -> tuple[float | Tensor, float | Tensor]:
    """Check mu and epsilon; numbers stay numbers, because a kernel takes them without a copy to the device."""
    if isinstance(mu, torch.Tensor):
        mu = mu_tensor(mu, shape, device)
    else:
        check_mu(mu)
    if isinstance(epsilon, torch.Tensor):
        epsilon = epsilon_tensor(epsilon, torch.float32, device, most_epsilon)
    else:
        check_epsilon(epsilon, most_epsilon)
    return mu, epsilon


def pool(
    tokens: Tensor,
    prototypes: Tensor,
    mu: float | Tensor,
    epsilon: float | Tensor,
    mask: Tensor | None,
    background: bool,
    precision: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return pooled, weights and attributes by the kernels; plain numbers travel as such, so that none is copied."""
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
    if torch.compiler.is_compiling() or type(tokens) not in PLAIN_TENSORS:
        pooled, weights, attributes, *_ = torch.ops.gspool.pool_forward(tokens, prototypes, *values, keep)
    elif keep:
        settings = launcher().Settings(*values)
        pooled, weights, attributes = EagerPool.apply(tokens, prototypes, mu_tensor, epsilon_tensor, settings, keep)
    else:
        pooled, weights, attributes, *_ = pool_forward(tokens, prototypes, *values, keep)
    return pooled, weights, attributes


def transport(cost: Tensor, mu: float | Tensor, epsilon: float | Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return residual and plan of costs [..., M, N] by the kernels; plain numbers travel as such."""
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


@functools.cache
def launcher() -> Any:
    """Return the module that launches kernels; it needs Triton, and is imported when the first kernel runs."""
    from gspool.functional.kernels import launch

    return launch


_NOTHING_TO_DO = nullcontext()


def on_device_of(tensor: Tensor) -> AbstractContextManager[Any]:
    """Make the tensor's device the current one, which it nearly always is."""
    if tensor.device.type == "cuda" and tensor.device.index != torch.cuda.current_device():
        return torch.cuda.device(tensor.device)
    return _NOTHING_TO_DO


class EagerPool(torch.autograd.Function):
    """The kernels of `gsp_pool` in eager calls, without PyTorch's dispatcher.

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
        """Return pooled, weights and attributes."""
        with on_device_of(tokens):
            (*results, kept, clipped), plan = launcher().pool_forward(tokens, prototypes, settings, keep)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(tokens, prototypes, kept, clipped, mu, epsilon, settings.mask)
        # Tensors are left to `save_for_backward`, which notices when they are changed in place.
        ctx.call = settings._replace(mu=None, epsilon=None, mask=None), keep, plan.kind
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *incoming: Tensor | None) -> tuple[Tensor | None, ...]:
        """Return the gradients of the inputs, None for what is not a tensor."""
        # A second gradient needs refusing only where this pass is recorded.
        if torch.is_grad_enabled():
            recorded: tuple[Tensor | None, ...] = _gradients_once(ctx, *incoming)
            return recorded
        return _gradients(ctx, *incoming)


def _gradients(ctx: Any, *incoming: Tensor | None) -> tuple[Tensor | None, ...]:
    tokens, prototypes, kept, clipped, mu, epsilon, mask = ctx.saved_tensors
    settings, keep, kind = ctx.call
    if mu is not None or epsilon is not None or mask is not None:
        settings = settings._replace(mu=mu, epsilon=epsilon, mask=mask)
    launch = launcher()
    with on_device_of(tokens):
        gradients = launch.pool_backward(
            tokens, prototypes, settings, keep, kept, clipped,
            Incoming(*incoming), Wanted(*ctx.needs_input_grad[:4]), kind,
        )  # fmt: skip
    return (*gradients, None, None)


_gradients_once = once_differentiable(_gradients)


_LIBRARY = torch.library.Library("gspool", "FRAGMENT")
_SCALARS = "Tensor? mu, float mu_value, Tensor? epsilon, float epsilon_value, Tensor? mask"
_SETTINGS = f"{_SCALARS}, bool background, str precision"
_LIBRARY.define(
    f"pool_forward(Tensor tokens, Tensor prototypes, {_SETTINGS}, int keep) -> (Tensor, Tensor, Tensor, Tensor, Tensor)"
)
_LIBRARY.define(
    f"pool_backward(Tensor tokens, Tensor prototypes, {_SETTINGS}, int keep, Tensor kept, Tensor clipped,"
    " Tensor? grad_pooled, Tensor? grad_weights, Tensor? grad_attributes,"
    " bool want_tokens, bool want_prototypes, bool want_mu, bool want_epsilon) -> (Tensor, Tensor, Tensor, Tensor)"
)
_LIBRARY.define(f"transport_forward(Tensor cost, {_SCALARS}) -> (Tensor, Tensor, Tensor, Tensor)")
_LIBRARY.define(
    f"transport_backward(Tensor cost, {_SCALARS}, Tensor affinities, Tensor images,"
    " Tensor? grad_residual, Tensor? grad_plan, bool want_epsilon) -> (Tensor, Tensor, Tensor)"
)


def pool_forward(
    tokens: Tensor, prototypes: Tensor, mu: Tensor | None, mu_value: float, epsilon: Tensor | None,
    epsilon_value: float, mask: Tensor | None, background: bool, precision: str, keep: int,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Run the forward kernels with the arguments of the operator."""
    launch = launcher()
    settings = launch.Settings(mu, mu_value, epsilon, epsilon_value, mask, background, precision)
    with on_device_of(tokens):
        output, _ = launch.pool_forward(tokens, prototypes, settings, keep)
    return tuple(output)


def pool_backward(
    tokens: Tensor, prototypes: Tensor, mu: Tensor | None, mu_value: float, epsilon: Tensor | None,
    epsilon_value: float, mask: Tensor | None, background: bool, precision: str, keep: int,
    kept: Tensor, clipped: Tensor,
    grad_pooled: Tensor | None, grad_weights: Tensor | None, grad_attributes: Tensor | None,
    want_tokens: bool, want_prototypes: bool, want_mu: bool, want_epsilon: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Run the backward kernels with the arguments of the operator.

    An operator cannot return None: a gradient that is not wanted is an empty tensor.
    """
    launch = launcher()
    settings = launch.Settings(mu, mu_value, epsilon, epsilon_value, mask, background, precision)
    incoming = Incoming(grad_pooled, grad_weights, grad_attributes)
    wanted = Wanted(want_tokens, want_prototypes, want_mu, want_epsilon)
    with on_device_of(tokens):
        gradients = launch.pool_backward(tokens, prototypes, settings, keep, kept, clipped, incoming, wanted)
    dtypes = (tokens.dtype, prototypes.dtype, torch.float32, torch.float32)
    return tuple(
        torch.empty(0, dtype=dtype, device=tokens.device) if gradient is None else gradient
        for gradient, dtype in zip(gradients, dtypes, strict=True)
    )


def _pool_forward_shapes(
    tokens: Tensor, prototypes: Tensor, mu: Tensor | None, mu_value: float, epsilon: Tensor | None,
    epsilon_value: float, mask: Tensor | None, background: bool, precision: str, keep: int,
) -> tuple[Tensor, ...]:  # fmt: skip
    from gspool.functional.kernels import plan

    B, N, D = tokens.shape
    M = prototypes.shape[0]
    settings = plan.Settings(mu, mu_value, epsilon, epsilon_value, mask, background, precision)
    kind = plan.kind_without_data(tokens, prototypes, settings)
    floats: dict[str, Any] = {"dtype": torch.float32, "device": tokens.device}
    return (
        tokens.new_empty((B, D)),
        torch.empty((B, N), **floats),
        torch.empty((B, M), **floats),
        torch.empty(plan.layout_of(B, N, D, M, plan.kept_sums(kind, keep)).length, **floats),
        tokens.new_empty((kind.parts, M, D)),
    )


def _pool_backward_shapes(tokens: Tensor, prototypes: Tensor, *others: Any) -> tuple[Tensor, ...]:
    *_, want_tokens, want_prototypes, want_mu, want_epsilon = others
    floats: dict[str, Any] = {"dtype": torch.float32, "device": tokens.device}
    return (
        torch.empty_like(tokens) if want_tokens else tokens.new_empty(0),
        prototypes.new_empty(prototypes.shape if want_prototypes else (0,)),
        tokens.new_empty(tokens.shape[:1], dtype=torch.float64) if want_mu else torch.empty(0, **floats),
        torch.empty(() if want_epsilon else (0,), **floats),
    )


def _save_pool(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    tokens, prototypes, mu, mu_value, epsilon, epsilon_value, mask, background, precision, keep = inputs
    _, _, _, kept, clipped = output
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(kept, clipped)
    ctx.save_for_backward(tokens, prototypes, mu, epsilon, mask, kept, clipped)
    ctx.values = mu_value, epsilon_value, background, precision, keep


def _differentiate_pool(ctx: Any, *incoming: Tensor | None) -> tuple[Tensor | None, ...]:
    tokens, prototypes, mu, epsilon, mask, kept, clipped = ctx.saved_tensors
    mu_value, epsilon_value, background, precision, keep = ctx.values
    grad_pooled, grad_weights, grad_attributes, *_ = incoming
    want_tokens, want_prototypes, want_mu, _, want_epsilon, *_ = ctx.needs_input_grad
    grad_tokens, grad_prototypes, grad_mu, grad_epsilon = torch.ops.gspool.pool_backward(
        tokens, prototypes, mu, mu_value, epsilon, epsilon_value, mask, background, precision, keep, kept, clipped,
        grad_pooled, grad_weights, grad_attributes, want_tokens, want_prototypes, want_mu, want_epsilon,
    )  # fmt: skip
    gradients = (grad_tokens, grad_prototypes, grad_mu, None, grad_epsilon, None, None, None, None, None)
    return tuple(gradient if wanted else None for gradient, wanted in zip(gradients, ctx.needs_input_grad, strict=True))


def _transport_forward(cost: Tensor, *scalars: Any) -> tuple[Tensor, ...]:
    from gspool.functional.kernels import plan, transport

    with torch.cuda.device_of(cost):
        return transport.transport_forward(cost, plan.Settings(*scalars))


def _transport_backward(
    cost: Tensor, mu: Tensor | None, mu_value: float, epsilon: Tensor | None, epsilon_value: float,
    mask: Tensor | None, affinities: Tensor, images: Tensor, grad_residual: Tensor | None, grad_plan: Tensor | None,
    want_epsilon: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    from gspool.functional.kernels import plan, transport

    settings = plan.Settings(mu, mu_value, epsilon, epsilon_value, mask)
    with torch.cuda.device_of(cost):
        return transport.transport_backward(cost, settings, affinities, images, grad_residual, grad_plan, want_epsilon)


def _transport_forward_shapes(cost: Tensor, *_: Any) -> tuple[Tensor, ...]:
    from gspool.functional.kernels.plan import IMAGE_ENTRIES

    B, M, N = cost.shape
    floats: dict[str, Any] = {"dtype": torch.float32, "device": cost.device}
    shapes: tuple[tuple[int, ...], ...] = ((B, N), (B, M, N), (B, N), (B, IMAGE_ENTRIES.value))
    return tuple(torch.empty(shape, **floats) for shape in shapes)


def _transport_backward_shapes(cost: Tensor, mu: Tensor | None, *others: Any) -> tuple[Tensor, ...]:
    *_, want_epsilon = others
    return (
        torch.empty(cost.shape, dtype=cost.dtype, device=cost.device),
        torch.empty(cost.shape[:1], dtype=torch.float64 if mu is None else mu.dtype, device=cost.device),
        torch.empty(() if want_epsilon else (0,), dtype=torch.float32, device=cost.device),
    )


def _save_transport(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    cost, mu, mu_value, epsilon, epsilon_value, mask = inputs
    _, _, affinities, images = output
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(affinities, images)
    ctx.save_for_backward(cost, mu, epsilon, mask, affinities, images)
    ctx.values = mu_value, epsilon_value


def _differentiate_transport(ctx: Any, *incoming: Tensor | None) -> tuple[Tensor | None, ...]:
    cost, mu, epsilon, mask, affinities, images = ctx.saved_tensors
    mu_value, epsilon_value = ctx.values
    grad_residual, grad_plan, *_ = incoming
    _, want_mu, _, want_epsilon, *_ = ctx.needs_input_grad
    grad_cost, grad_mu, grad_epsilon = torch.ops.gspool.transport_backward(
        cost, mu, mu_value, epsilon, epsilon_value, mask, affinities, images, grad_residual, grad_plan, want_epsilon
    )
    return grad_cost, grad_mu if want_mu else None, None, grad_epsilon if want_epsilon else None, None, None


def _refuse_second_gradient(ctx: Any, *_: Any) -> Any:
    raise RuntimeError(
        "the Triton kernels of gsp_pool and partial_transport are differentiable once, as the plain versions are; "
        "compute a second derivative by finite differences of the first"
    )


_OPERATORS: tuple[tuple[str, Any, Any, Any, Any], ...] = (
    ("pool_forward", pool_forward, _pool_forward_shapes, _differentiate_pool, _save_pool),
    ("pool_backward", pool_backward, _pool_backward_shapes, _refuse_second_gradient, None),
    ("transport_forward", _transport_forward, _transport_forward_shapes, _differentiate_transport, _save_transport),
    ("transport_backward", _transport_backward, _transport_backward_shapes, _refuse_second_gradient, None),
)
for _name, _run, _shapes, _gradient, _save in _OPERATORS:
    _LIBRARY.impl(_name, _run, "CompositeExplicitAutograd")
    torch.library.register_fake(f"gspool::{_name}", _shapes, lib=_LIBRARY)
    torch.library.register_autograd(f"gspool::{_name}", _gradient, setup_context=_save, lib=_LIBRARY)
