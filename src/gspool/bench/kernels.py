"""Which backend a layer runs by, and whether it computes the right thing: what is wrong is not timed."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING

import torch

from gspool.bench.steps import TrainingStep
from gspool.functional.kernels.dispatch import uses_kernels
from gspool.pooling import GSP

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from gspool.pooling import PoolingLayer

# Largest difference from the plain version in float64, as a part of the largest value.
ALLOWED = {"float32": 1e-4, "rounded": 2e-2}
# Images to compare: as few as show a wrong kernel, because float64 is slow on a GPU.
COMPARED = 4


def backend_of(layer: PoolingLayer, features: Float[Tensor, "B C H W"]) -> str | None:
    """Tell by which backend a layer would pool, ``torch`` or ``triton``; None if it has no choice.

    Raises:
        ValueError: if it was made for the kernels and they cannot run here, with the reason.

    Example:
        >>> backend_of(GSP(dim=8), torch.zeros(1, 8, 2, 2))
        'torch'
    """
    inside = _gsp_of(layer)
    if inside is None:
        return None
    by_kernels = uses_kernels(inside.backend, inside.prototypes.shape[0], features, inside.prototypes)
    return "triton" if by_kernels else "torch"


def check_kernels(layer: PoolingLayer, features: Float[Tensor, "B C H W"]) -> None:
    """Compare what the kernels give, vectors and the gradients of features, with the plain version in float64.

    Raises:
        ValueError: if they differ by more than `ALLOWED`.
    """
    few = features[:COMPARED].detach()
    twin = deepcopy(layer).double()
    inside = _gsp_of(twin)
    if inside is not None:
        inside.backend = "torch"
    exact = inside is not None and inside.precision == "exact" and features.dtype == torch.float32
    allowed = ALLOWED["float32" if exact else "rounded"]
    found, plain = _results(deepcopy(layer), few, features.dtype), _results(twin, few.double(), torch.float64)
    for name, ours, truth in zip(("vectors", "gradients"), found, plain, strict=True):
        error = float((ours.double() - truth).abs().max() / truth.abs().max())
        if not error <= allowed:
            raise ValueError(
                f"the kernels' {name} are off by {error:.1e} of the largest value, more than {allowed:.0e}; they are "
                "not timed. Please report it, with your GPU and the versions of torch and triton; backend='torch' works"
            )


def _results(layer: PoolingLayer, features: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    step = TrainingStep(layer, features, dtype)
    output = step.forward()
    incoming = torch.randn(output.shape, generator=torch.Generator().manual_seed(0)).to(output)
    return output.detach(), torch.autograd.grad(output, step.inputs, incoming)[0]


def _gsp_of(layer: torch.nn.Module) -> GSP | None:
    return next((part for part in layer.modules() if isinstance(part, GSP)), None)
