"""Generalized max pooling (GeMax)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.function import once_differentiable

from gspool.functional.checks import full_precision, values_can_be_read
from gspool.functional.results import Pooled
from gspool.pooling.layer import PoolingLayer, real_tokens

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from torch import Tensor

# A ridge of fewer roundings of the Gram matrix costs the digits of float32.
LEAST_RIDGE = 1e7


class GeMax(PoolingLayer):
    """Generalized max pooling: the vector that is about equally similar to every token, frequent or rare.

    ``argmin_x sum_j (f_j . x - 1)^2 + ridge |x|^2``, which is ``F' (F F' + ridge I)^-1 1`` with the tokens as rows of
    F. From "Interferences in match kernels" (Murray et al., 2016); ``ridge = 1`` in the authors' reference
    implementation. A very large ridge gives sum pooling, divided by the ridge.

    There are no ``weights``: the coefficients of the tokens may be negative and do not sum to one.

    Raises:
        ValueError: if the ridge is not positive and finite.

    Example:
        >>> twice_the_same_and_another = torch.tensor([[[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]])
        >>> GeMax(dim=2, ridge=1e-6)(twice_the_same_and_another).round(decimals=3)
        tensor([[1., 1.]])
    """

    embedding = "after"

    def __init__(self, dim: int, ridge: float = 1.0) -> None:
        super().__init__(dim)
        if not (math.isfinite(ridge) and ridge > 0):
            raise ValueError(f"ridge is the regularisation of a least-squares problem and must be > 0, got {ridge}")
        self.ridge = ridge

    def pool(self, x: Float[Tensor, "B C H W"], mask: Bool[Tensor, "B H W"] | None = None) -> Pooled:
        """Solve the ridge regression of ones on the real tokens."""
        # A token of zeros adds nothing to either Gram matrix.
        tokens, _ = real_tokens(x, mask, self.dim)
        with full_precision(x):
            pooled = ridge_of_ones(tokens.to(solver_dtype(x.device)), self.ridge)
        return Pooled(pooled.to(x.dtype))

    def extra_repr(self) -> str:
        """Name size and ridge in `print(model)`."""
        return f"{super().extra_repr()}, ridge={self.ridge:g}"


def solver_dtype(device: torch.device) -> torch.dtype:
    """Choose the precision of the solve: float64, except on Apple's GPUs, which have none.

    Neighbouring tokens are alike, so their Gram matrix is nearly singular but for the ridge: 49 tokens of rank 8 and
    norm 93 are off by 0.6 % when solved in float32, and of norm 930 by more than the answer.
    """
    return torch.float32 if device.type == "mps" else torch.float64


def ridge_of_ones(tokens: Float[Tensor, "B N C"], ridge: float) -> Float[Tensor, "B C"]:
    """Regress ones on the tokens through the smaller of the two Gram matrices, [N, N] or [C, C].

    A Gram matrix squares the lengths, so that a ridge far below it drowns in rounding, as with duplicated long tokens.
    Where values can be read, such tokens are solved by a singular value decomposition, which is slow and exact.
    Elsewhere the ridge is raised to what the matrix can resolve, so that there is a solution.
    """
    # In units of the largest number, no square leaves the range of the dtype.
    unit = tokens.detach().abs().amax((1, 2), keepdim=True).clamp_min(1)
    tokens = tokens / unit
    ridges = ridge / unit.square()
    traces = tokens.detach().square().sum((1, 2))[:, None, None]
    eps = torch.finfo(tokens.dtype).eps
    if values_can_be_read(tokens) and bool((ridges < LEAST_RIDGE * eps * traces).any()):
        solved: Tensor = _ByDecomposition.apply(tokens, ridges)
        return solved / unit[:, 0]
    tokens_t = tokens.transpose(1, 2)
    fewer_tokens = tokens.shape[1] <= tokens.shape[2]
    gram = tokens @ tokens_t if fewer_tokens else tokens_t @ tokens
    size = gram.shape[1]
    ridges = torch.maximum(ridges, 4 * size * eps * traces)
    factor = torch.linalg.cholesky_ex(gram + ridges * torch.eye(size, dtype=gram.dtype, device=gram.device)).L
    if fewer_tokens:
        ones = torch.ones_like(tokens[:, :, :1])
        solved = (tokens_t @ torch.cholesky_solve(ones, factor)).squeeze(2)
    else:
        solved = torch.cholesky_solve(tokens_t.sum(2, keepdim=True), factor).squeeze(2)
    return solved / unit[:, 0]


class _ByDecomposition(torch.autograd.Function):
    """The same from ``F = U S V'``; its gradient in closed form, because that of U and V has no limit at duplicates."""

    @staticmethod
    def forward(ctx: Any, tokens: Tensor, ridges: Tensor) -> Tensor:
        u, s, vh = torch.linalg.svd(tokens, full_matrices=False)
        rounding = torch.finfo(s.dtype).eps * max(tokens.shape[1:])
        # What rounding leaves of 0 would count for much where the ridge is smaller still.
        s = torch.where(s > rounding * s.amax(1, keepdim=True), s, 0)
        ones = above(u.sum(1), rounding)
        ridges = ridges[:, 0]
        coefficients = ones * s / (s.square() + ridges)
        pooled = _along(vh, coefficients)
        # 1 - F x, without the cancellation of that difference.
        unexplained = _along(u.mT, ones * ridges / (s.square() + ridges)) + above(1 - _along(u.mT, ones), rounding)
        ctx.save_for_backward(u, s, vh, ridges, pooled, unexplained)
        return pooled

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        """With ``A = F'F + ridge``: ``x = A^-1 F'1`` and ``dL/dF = (1 - F x) (A^-1 g)' - (F A^-1 g) x'``."""
        u, s, vh, ridges, pooled, unexplained = ctx.saved_tensors
        (gradient,) = gradients
        seen = _along(vh.mT, gradient)
        solved = _along(vh, seen / (s.square() + ridges)) + (gradient - _along(vh, seen)) / ridges
        image = _along(u.mT, seen * s / (s.square() + ridges))
        return unexplained[..., None] * solved[:, None] - image[..., None] * pooled[:, None], None


def _along(rows: Float[Tensor, "B K C"], coefficients: Float[Tensor, "B K"]) -> Float[Tensor, "B C"]:
    return torch.bmm(coefficients[:, None], rows)[:, 0]


def above(values: Tensor, rounding: float) -> Tensor:
    """Set to 0 what is no more than rounding."""
    return torch.where(values.abs() > rounding, values, 0)
