"""Operators in the words of ONNX, against PyTorch's own and against numpy in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from gspool.models.export import every_call
from gspool.models.onnx_export import (
    attention,
    pairwise_distance,
    postponed_factor,
    solve_postponed,
    without_missing_operators,
)


def draw(*shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize("shape", [(1, 1, 3), (2, 7, 4), (2, 3, 63, 8)])
def test_attention_is_attention(shape: tuple[int, ...]) -> None:
    query, key, value = draw(*shape), draw(*shape) + 0.1, draw(*shape) - 0.2
    torch.testing.assert_close(attention(query, key, value), scaled_dot_product_attention(query, key, value))
    mask = torch.rand(shape[-2], shape[-2], generator=torch.Generator().manual_seed(0)) > 0.4
    mask |= torch.eye(shape[-2], dtype=torch.bool)
    expected = scaled_dot_product_attention(query, key, value, attn_mask=mask)
    torch.testing.assert_close(attention(query, key, value, mask), expected)
    expected = scaled_dot_product_attention(query, key, value, attn_mask=mask.double(), scale=0.3)
    torch.testing.assert_close(attention(query, key, value, mask.double(), scale=0.3), expected)


def test_attention_that_looks_ahead_is_refused() -> None:
    tokens = draw(1, 3, 2)
    with pytest.raises(ValueError, match="causal and grouped"):
        attention(tokens, tokens, tokens, is_causal=True)


@pytest.mark.parametrize("p", [1.0, 2.0, 3.0])
def test_distances_are_those_of_a_loop(p: float) -> None:
    left, right = draw(2, 5, 3), draw(2, 7, 3)
    expected = np.zeros((2, 5, 7))
    for b, i, j in np.ndindex(2, 5, 7):
        expected[b, i, j] = (abs(left[b, i] - right[b, j]) ** p).sum() ** (1 / p)
    np.testing.assert_allclose(pairwise_distance(left, right, p), expected, rtol=1e-12)


@pytest.mark.parametrize("ridge", [1e-8, 1e-3, 1.0])
@pytest.mark.parametrize("size", [1, 7, 49])
def test_a_system_is_solved_to_what_its_condition_allows(size: int, ridge: float) -> None:
    tokens = draw(2, size, max(1, size // 3)) * 5
    matrix = tokens @ tokens.transpose(1, 2) + ridge * torch.eye(size, dtype=torch.float64)
    right = draw(2, size, 3)
    factor, info = postponed_factor(matrix)
    solution = solve_postponed(right, factor)
    expected = np.linalg.solve(matrix.numpy(), right.numpy())
    condition = np.linalg.cond(matrix.numpy()).max()
    np.testing.assert_allclose(solution, expected, atol=1e-14 * condition * abs(expected).max())
    assert info.tolist() == [0, 0]
    # A right side that the tokens explain has a small solution, which an inverse alone would drown in its rounding.
    explained = solve_postponed(tokens, factor)
    expected = np.linalg.solve(matrix.numpy(), tokens.numpy())
    np.testing.assert_allclose(explained, expected, atol=1e-14 * condition * abs(expected).max())


def test_a_graph_without_such_operators_stays_itself() -> None:
    program = torch.export.export(torch.nn.Linear(3, 2), (torch.zeros(1, 3),), strict=False)
    assert without_missing_operators(program) is program


def test_a_factor_that_is_used_for_itself_is_refused() -> None:
    class Factor(torch.nn.Module):
        def forward(self, matrix: torch.Tensor) -> torch.Tensor:
            return torch.linalg.cholesky_ex(matrix).L * 2

    program = torch.export.export(Factor(), (torch.eye(3),), strict=False)
    with pytest.raises(ValueError, match=r"needs the factor itself.*--torch"):
        without_missing_operators(program)


def test_operators_inside_autocast_regions_are_found() -> None:
    class Inside(torch.nn.Module):
        def forward(self, left: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cpu", enabled=False):
                return torch.cdist(left, left + 1)

    program = torch.export.export(Inside(), (torch.randn(4, 3),), strict=False)
    rewritten = without_missing_operators(program)
    assert any("cdist" in str(node.target) for node in every_call(program))
    assert not any("cdist" in str(node.target) for node in every_call(rewritten))
    points = draw(4, 3, dtype=torch.float32)
    torch.testing.assert_close(rewritten.module()(points), torch.cdist(points, points + 1))
