"""Which backend runs: the rule behind ``backend="auto"``, and why ``backend="triton"`` may be refused."""

from __future__ import annotations

import importlib.util
import os
from typing import TYPE_CHECKING, Literal, get_args

import torch

from gspool.functional.checks import MOST_EPSILON, check_epsilon, check_mu, epsilon_tensor, mu_tensor
from gspool.functional.kernels.tiling import MOST_PROTOTYPES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

Backend = Literal["auto", "torch", "triton"]
Precision = Literal["exact", "tf32"]
# How Triton names them: three TF32 products carry the digits of float32.
DOT_PRECISION = {"exact": "tf32x3", "tf32": "tf32"}
KERNEL_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
BACKENDS, PRECISIONS = get_args(Backend), get_args(Precision)

TRITON_IS_INSTALLED = importlib.util.find_spec("triton") is not None
_known_devices: dict[int, bool] = {}


# A compiler shall take the answer as it is, and not follow the question into CUDA.
@torch.compiler.assume_constant_result
def _matrix_units_fit(index: int) -> bool:
    """TF32 and bfloat16 products need an NVIDIA GPU of compute capability 8.0 or newer."""
    if index not in _known_devices:
        _known_devices[index] = torch.version.cuda is not None and torch.cuda.get_device_capability(index) >= (8, 0)
    return _known_devices[index]


def _interpreted() -> bool:
    return os.environ.get("TRITON_INTERPRET") == "1"


# Dynamo answers True in every compilation, and so must not be the one that is asked.
@torch.compiler.assume_constant_result
def _exporting() -> bool:
    return torch.compiler.is_exporting()


def uses_kernels(backend: Backend, prototypes: int, *tensors: Tensor) -> bool:
    """Say whether the kernels run: for ``triton`` always, for ``torch`` never, for ``auto`` on a GPU that can run them.

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
