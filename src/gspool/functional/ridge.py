"""Ridge regression in closed form (P3), by a Cholesky solve of the smaller Gram matrix."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from gspool.functional.checks import check_tensor, computing_dtype, full_precision

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor


def ridge_regression(
    inputs: Float[Tensor, "*R S M"], targets: Float[Tensor, "*R S D"], ridge: float
) -> Float[Tensor, "*R M D"]:
    """Find the linear map ``A`` that minimises ``|inputs A - targets|^2 + ridge |A|^2`` (P3, samples as rows).

    Of the two equal forms, ``(Z'Z + r I)^-1 Z'U`` and ``Z' (ZZ' + r I)^-1 U``, the one with the smaller matrix is used.
    A row of zeros is a sample that does not count. Leading axes are regressions of their own. Differentiable in both
    arguments.

    Raises:
        ValueError: for shapes that do not fit, or a ridge that is not positive.

    Example:
        >>> ridge_regression(torch.eye(2), torch.eye(2), ridge=1.0)
        tensor([[0.5000, 0.0000],
                [0.0000, 0.5000]])
    """
    check_tensor(inputs, "inputs", "[samples, M]")
    check_tensor(targets, "targets", "[samples, D]")
    if inputs.ndim < 2 or inputs.shape[:-1] != targets.shape[:-1]:
        raise ValueError(
            "inputs [samples, M] and targets [samples, D] must have one row a sample each, "
            f"got {tuple(inputs.shape)} and {tuple(targets.shape)}"
        )
    if not ridge > 0:
        raise ValueError(f"ridge must be positive, or the system may have no single solution, got {ridge!r}")
    samples, features = inputs.shape[-2:]
    dtype = computing_dtype(inputs, targets)
    with full_precision(inputs):
        z, u = inputs.to(dtype), targets.to(dtype)
        gram, right = (z @ z.mT, u) if samples <= features else (z.mT @ z, z.mT @ u)
        regularised = gram + ridge * torch.eye(gram.shape[-1], dtype=dtype, device=gram.device)
        # Whether a ridge was too small for these digits is an error on a CPU; on a GPU, which would be waited for, NaN.
        factor, failed = torch.linalg.cholesky_ex(regularised, check_errors=regularised.device.type == "cpu")
        solution = torch.cholesky_solve(right, factor.masked_fill(failed.bool()[..., None, None], math.nan))
        return z.mT @ solution if samples <= features else solution
