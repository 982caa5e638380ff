"""Generalized max pooling."""

from __future__ import annotations

import pytest
import torch

from gspool.pooling.gemax import GeMax, _ByDecomposition, ridge_of_ones, solver_dtype
from pooling.references import gemax


def test_solves_the_ridge_regression_of_ones() -> None:
    x = torch.randn(1, 6, 4, dtype=torch.float64)
    pooled = GeMax(4, ridge=0.7)(x).requires_grad_()
    loss = ((x @ pooled[0] - 1) ** 2).sum() + 0.7 * pooled.square().sum()
    (gradient,) = torch.autograd.grad(loss, pooled)
    torch.testing.assert_close(gradient, torch.zeros_like(gradient))


def test_small_ridge_is_equally_similar_to_every_token() -> None:
    x = torch.randn(2, 4, 9, dtype=torch.float64)
    similarity = torch.einsum("bnc,bc->bn", x, GeMax(9, ridge=1e-9)(x))
    torch.testing.assert_close(similarity, torch.ones_like(similarity))


def test_small_ridge_does_not_count_repeated_tokens() -> None:
    x = torch.randn(1, 3, 5, dtype=torch.float64)
    repeated = torch.cat([x, x[:, :1].expand(1, 20, 5)], dim=1)
    layer = GeMax(5, ridge=1e-8)
    torch.testing.assert_close(layer(repeated), layer(x), rtol=1e-5, atol=1e-5)


def test_coefficients_may_be_negative_so_there_are_no_weights() -> None:
    # Two tokens in one direction, one longer: the short one is raised and the long one pays for it.
    tokens = torch.tensor([[[1.0, 0.0], [3.0, 0.0]]], dtype=torch.float64)
    kernel = tokens[0] @ tokens[0].T + 0.1 * torch.eye(2, dtype=torch.float64)
    assert torch.linalg.solve(kernel, torch.ones(2, dtype=torch.float64)).min() < 0
    assert GeMax(2, ridge=0.1).pool(tokens).weights is None


def test_long_and_alike_float32_features_keep_their_digits() -> None:
    # 49 tokens of rank 8 and length 300 at a ridge of 1: solved in float32, the answer is off by a tenth.
    x = 10 * torch.rand(1, 49, 8) @ torch.rand(1, 8, 256)
    layer = GeMax(256)
    expected = gemax(x[0].mT.double().numpy(), layer).pooled
    torch.testing.assert_close(layer(x)[0].double(), torch.from_numpy(expected), rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("length", [1e3, 1e6, 1e12, 1e30])
def test_duplicated_long_tokens_equal_the_pseudo_inverse(length: float, dtype: torch.dtype) -> None:
    # To so long tokens the ridge is nothing, and twins share the gradient of the one that they are.
    distinct = (length * torch.randn(2, 3, 5, dtype=torch.float64)).to(dtype)
    direction = length * torch.randn(2, 5, dtype=torch.float64)
    x, truth = distinct.repeat(1, 4, 1).requires_grad_(), distinct.double().requires_grad_()
    pooled, expected = GeMax(5)(x), torch.linalg.pinv(truth).sum(2)
    (pooled.double() * direction).sum().backward()
    (expected * direction).sum().backward()
    tolerance = {"rtol": 1e-5, "atol": 1e-5}
    torch.testing.assert_close(length * pooled.double(), length * expected, **tolerance)
    torch.testing.assert_close(4 * length * x.grad[:, :3].double(), length * truth.grad, **tolerance)


@pytest.mark.parametrize(("n", "dim"), [(7, 4), (3, 6)])
def test_both_ways_to_solve_agree(n: int, dim: int) -> None:
    x, ridges = torch.randn(2, n, dim, dtype=torch.float64, requires_grad=True), torch.full((2, 1, 1), 0.7).double()
    torch.testing.assert_close(_ByDecomposition.apply(x, ridges), ridge_of_ones(x, 0.7))
    assert torch.autograd.gradcheck(lambda t: _ByDecomposition.apply(t, ridges), x)


def test_a_ridge_that_drowns_is_raised_where_values_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    # As on a GPU: twins of the same length are alike to any ridge.
    monkeypatch.setattr("gspool.pooling.gemax.values_can_be_read", lambda *_: False)
    x = 1e12 * torch.randn(2, 1, 5, dtype=torch.float64).repeat(1, 4, 1)
    expected = x[:, 0] / x[:, 0].square().sum(1, keepdim=True)
    torch.testing.assert_close(1e12 * GeMax(5)(x), 1e12 * expected)


def test_apple_gpus_solve_in_float32() -> None:
    assert solver_dtype(torch.device("mps")) == torch.float32
    assert solver_dtype(torch.device("cuda", 0)) == torch.float64
