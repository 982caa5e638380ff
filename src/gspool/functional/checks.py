"""Check arguments; every error says what came, what was expected and what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from torch import Tensor

# Below, the shares leave the range of float32.
LEAST_MU = 1e-30
# Above, one rounding of a distance decides which tokens are chosen; `hard_selection` is the limit of all larger ones.
MOST_EPSILON = 1e6


def full_precision(like: Tensor) -> AbstractContextManager[Any]:
    """Switch autocast off: the weights depend on epsilon times the cost, which half-precision products would blur."""
    return torch.autocast(device_type=like.device.type, enabled=False)


def computing_dtype(*tensors: Tensor) -> torch.dtype:
    """Compute in float64 where an input is float64, in float32 for everything else."""
    return torch.float64 if any(t.dtype == torch.float64 for t in tensors) else torch.float32


def values_can_be_read(*tensors: Tensor) -> bool:
    """Return whether reading values is free: eagerly, on the CPU, outside `torch.func` transforms.

    Reading a value stalls a GPU, breaks a compiled graph and is impossible under vmap, so ranges of *tensors* are
    checked only where this holds. Plain numbers are checked always.
    """
    return not torch.compiler.is_compiling() and not any(
        t.device.type != "cpu" or torch._C._functorch.is_functorch_wrapped_tensor(t) for t in tensors
    )


def check_tensor(value: Any, name: str, axes: str) -> None:
    """Refuse what is not a floating-point tensor."""
    if not isinstance(value, torch.Tensor):
        raise ValueError(f"{name} must be a torch.Tensor {axes}, got {type(value).__name__}")
    if not value.is_floating_point():
        raise ValueError(f"{name} must be floating point, got {value.dtype}; convert it with {name}.float()")


def check_cost(cost: Any) -> None:
    """Refuse a cost that is not [..., M, N] with at least one prototype and one token."""
    check_tensor(cost, "cost", "[..., M, N]")
    if cost.ndim < 2 or 0 in cost.shape[-2:]:
        raise ValueError(
            f"cost must be [..., M, N] with at least one prototype and one token, got shape {tuple(cost.shape)}"
        )


def check_tokens(tokens: Any, prototypes: Any) -> None:
    """Refuse tokens and prototypes that do not fit each other."""
    check_tensor(tokens, "tokens", "[B, N, D]")
    check_tensor(prototypes, "prototypes", "[M, D]")
    if tokens.ndim != 3 or tokens.shape[1] == 0:
        raise ValueError(
            f"tokens must be [B, N, D] with at least one token, got shape {tuple(tokens.shape)}; "
            "see a feature map [B, C, H, W] as tokens with x.flatten(2).transpose(1, 2)"
        )
    if prototypes.ndim != 2 or prototypes.shape[0] == 0 or prototypes.shape[1] != tokens.shape[2]:
        raise ValueError(
            f"prototypes must be [M, D] with at least one row and the tokens' D = {tokens.shape[2]}, "
            f"got shape {tuple(prototypes.shape)}"
        )
    if tokens.device != prototypes.device:
        raise ValueError(
            f"tokens are on {tokens.device} and prototypes on {prototypes.device}; move both to one device with .to()"
        )


def check_mask(mask: Any, shape: Sequence[int], device: torch.device) -> None:
    """Refuse a mask of another type, shape or device, and, where values can be read, an image without a token."""
    if mask is None:
        return
    if not isinstance(mask, torch.Tensor) or mask.dtype != torch.bool:
        got = mask.dtype if isinstance(mask, torch.Tensor) else type(mask).__name__
        raise ValueError(f"mask must be a boolean tensor (True = real token), got {got}; convert it with mask.bool()")
    if tuple(mask.shape) != tuple(shape):
        raise ValueError(f"mask must have shape {tuple(shape)}, one entry a token, got {tuple(mask.shape)}")
    if mask.device != device:
        raise ValueError(f"mask is on {mask.device} and the features on {device}; move it with mask.to(x.device)")
    if values_can_be_read(mask) and not bool(mask.any(-1).all()):
        empty = int((~mask.any(-1)).sum())
        raise ValueError(f"mask leaves {empty} image(s) without a single real token; drop them or unmask a token")


def check_mu(mu: Any) -> None:
    """Refuse a plain number that is no fraction of mass."""
    if isinstance(mu, bool) or not isinstance(mu, (int, float)) or not 0 < mu <= 1:
        raise ValueError(f"mu is the fraction of mass kept and must lie in (0, 1], got {mu!r}")
    if mu < LEAST_MU:
        raise ValueError(f"mu must be at least {LEAST_MU:g}, got {mu!r}; below, all values give the same weights")


def check_epsilon(epsilon: Any, most: float) -> None:
    """Refuse a plain number that is no sharpness."""
    if isinstance(epsilon, bool) or not isinstance(epsilon, (int, float)) or not 0 <= epsilon < float("inf"):
        raise ValueError(f"{_EPSILON}, got {epsilon!r}")
    if epsilon > most:
        raise ValueError(_too_sharp(float(epsilon), most))


_EPSILON = "epsilon multiplies the cost (larger is sharper) and must be a finite number >= 0"


def _too_sharp(epsilon: float, most: float) -> str:
    return f"epsilon must be at most {most:g}, got {epsilon:g}; take `hard_selection` for the limit of large epsilon"


def mu_tensor(mu: Any, shape: Sequence[int], device: torch.device) -> Tensor:
    """Return mu as one number an image; refuse what is outside (0, 1], or so small that float32 cannot compute it.

    It stays in float64 where the device has it: close to 1 it is ``1 - mu`` that counts, and float32 has few of its
    digits (0.999 would be off by 1e-5 of what is kept back).
    """
    dtype = torch.float32 if device.type == "mps" else torch.float64
    explanation = "mu is the fraction of mass kept and must lie in (0, 1]"
    if not isinstance(mu, torch.Tensor):
        check_mu(mu)
        return torch.full(tuple(shape), float(mu), dtype=dtype, device=device)
    if not mu.is_floating_point():
        raise ValueError(f"{explanation}; a tensor must be floating point, got {mu.dtype}")
    if mu.device != device and mu.ndim:
        raise ValueError(f"mu is on {mu.device} and the features on {device}; move it with mu.to(x.device)")
    if mu.ndim and tuple(mu.shape) != tuple(shape):
        raise ValueError(f"mu must be a number or one number an image, shape {tuple(shape)}, got {tuple(mu.shape)}")
    if values_can_be_read(mu) and not bool(((mu >= LEAST_MU) & (mu <= 1)).all()):
        raise ValueError(
            f"{explanation}, and be at least {LEAST_MU:g}, got values from {float(mu.min()):g} to {float(mu.max()):g}"
        )
    return mu.to(device=device, dtype=dtype).expand(tuple(shape))


def epsilon_tensor(epsilon: Any, dtype: torch.dtype, device: torch.device, most: float = MOST_EPSILON) -> Tensor:
    """Return epsilon as a scalar tensor; refuse what is negative, not finite, or more than ``most``."""
    if not isinstance(epsilon, torch.Tensor):
        check_epsilon(epsilon, most)
        # Filled on the device: a copy from the host would stall it, and cannot be captured in a CUDA graph.
        return torch.full((), float(epsilon), dtype=dtype, device=device)
    if not epsilon.is_floating_point() or epsilon.ndim:
        raise ValueError(
            f"{_EPSILON}; a tensor must be a floating-point scalar, got {epsilon.dtype} {tuple(epsilon.shape)}"
        )
    if values_can_be_read(epsilon):
        check_epsilon(float(epsilon.detach()), most)
    return epsilon.to(device=device, dtype=dtype)
