"""Rewrite operators that ONNX lacks in those that it has: differences, products, softmax."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.export import ExportedProgram

from gspool.models.export import every_call

if TYPE_CHECKING:
    from jaxtyping import Float

# Each step squares the error of an inverse. The error starts at 1 - 1/k for a matrix of condition k, so these steps
# reach the last digit for any k that float64 can distinguish from singular (log2 of 40 * 2**52 is 57).
INVERSE_STEPS = 58
# Corrects what the products have rounded: a solution may be far smaller than the inverse would allow.
REFINEMENTS = 3

aten = torch.ops.aten


def without_missing_operators(program: ExportedProgram) -> ExportedProgram:
    """Rewrite the operators of a graph that ONNX lacks; a graph without any is returned as it is.

    Raises:
        ValueError: if a Cholesky factor is used for something else than solving.
    """
    table: dict[Any, Callable[..., Any]] = {}
    for node in every_call(program):
        first: Any = node.args[0] if node.args else None
        if node.target is aten.scaled_dot_product_attention.default and first.meta["val"].ndim != 4:
            table[node.target] = attention
        elif node.target in (aten.cdist.default, aten._cdist_forward.default):
            table[node.target] = pairwise_distance
        elif node.target is aten.linalg_cholesky_ex.default:
            _check_only_solved(node)
            table[node.target] = postponed_factor
            table[aten.cholesky_solve.default] = solve_postponed
    return program.run_decompositions(table) if table else program


def attention(
    query: Float[Tensor, "*B N D"],
    key: Float[Tensor, "*B K D"],
    value: Float[Tensor, "*B K E"],
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Float[Tensor, "*B N E"]:
    """Compute attention by plain products: the exporter's own translation takes queries of four axes only.

    Raises:
        ValueError: for causal or grouped attention, which no layer here uses.
    """
    if is_causal or enable_gqa:
        raise ValueError("causal and grouped attention of other than four axes cannot be exported to ONNX")
    logits = (query @ key.transpose(-2, -1)) * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    if attn_mask is not None:
        logits = logits.masked_fill(~attn_mask, -torch.inf) if attn_mask.dtype == torch.bool else logits + attn_mask
    return torch.softmax(logits, dim=-1) @ value


def pairwise_distance(
    left: Float[Tensor, "*B M D"], right: Float[Tensor, "*B N D"], p: float = 2.0, compute_mode: int | None = None
) -> Float[Tensor, "*B M N"]:
    """Compute distances by direct differences, as exact as the operator it replaces."""
    return torch.linalg.vector_norm(left[..., :, None, :] - right[..., None, :, :], ord=p, dim=-1)


def postponed_factor(
    matrix: Float[Tensor, "*B N N"], *, upper: bool = False, check_errors: bool = False
) -> tuple[Tensor, Tensor]:
    """Replace a Cholesky factorisation: pass on the matrix itself, which `solve_postponed` inverts."""
    return matrix.clone(), torch.zeros_like(matrix[..., 0, 0], dtype=torch.int32)


def solve_postponed(
    right: Float[Tensor, "*B N K"], matrix: Float[Tensor, "*B N N"], upper: bool = False
) -> Float[Tensor, "*B N K"]:
    """Solve ``A x = b`` for a positive definite A by the Newton-Schulz inverse ``X <- X (2 - A X)``.

    From ``X = 1/|A|`` every eigenvalue's error ``1 - x a`` lies in [0, 1) and is squared by each step: a fixed number
    of matrix products and no branch, for a matrix of any size.
    """
    norm = matrix.abs().sum(-1).amax(-1)[..., None, None]
    identity = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
    inverse = identity / norm
    for _ in range(INVERSE_STEPS):
        inverse = inverse @ (2 * identity - matrix @ inverse)
    solution = inverse @ right
    for _ in range(REFINEMENTS):
        solution = solution + inverse @ (right - matrix @ solution)
    return solution


def _check_only_solved(node: torch.fx.Node) -> None:
    factors = [user for user in node.users if user.args[1] == 0]
    uses = {use.target for factor in factors for use in factor.users}
    if uses - {aten.cholesky_solve.default}:
        raise ValueError(
            f"ONNX has no Cholesky factorisation, and this graph needs the factor itself, for {uses}; "
            "export it with --torch instead"
        )
