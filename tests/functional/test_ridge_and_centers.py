import itertools

import pytest
import torch

from gspool.functional import greedy_centers, ridge_regression


@pytest.mark.parametrize(("samples", "features"), [(3, 7), (7, 3), (5, 5), (1, 1)])
def test_ridge_is_the_minimiser(samples, features):
    z = torch.randn(samples, features, dtype=torch.float64)
    u = torch.randn(samples, 4, dtype=torch.float64)
    a = ridge_regression(z, u, 0.05).requires_grad_()
    ((z @ a - u).square().sum() + 0.05 * a.square().sum()).backward()
    torch.testing.assert_close(a.grad, torch.zeros_like(a), rtol=0, atol=1e-10)


@pytest.mark.parametrize(("samples", "features"), [(3, 6), (6, 3)])
def test_a_row_of_zeros_does_not_count(samples, features):
    z, u = torch.randn(samples, features, dtype=torch.float64), torch.randn(samples, 4, dtype=torch.float64)
    z[0], u[0] = 0, 0
    torch.testing.assert_close(ridge_regression(z, u, 0.1), ridge_regression(z[1:], u[1:], 0.1))


def test_ridge_gradcheck():
    z = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    u = torch.randn(4, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda a, b: ridge_regression(a, b, 0.3), (z, u))


def covering_radius(points, chosen):
    return float(torch.cdist(points, points[list(chosen)]).amin(1).max())


def test_centers_cover_within_twice_the_best():
    points = torch.randn(9, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    best = min(covering_radius(points, chosen) for chosen in itertools.combinations(range(9), 3))
    assert covering_radius(points, greedy_centers(points, 3).tolist()) <= 2 * best


def test_centers_are_distinct_rows_even_among_duplicates():
    assert sorted(greedy_centers(torch.ones(5, 3), 5).tolist()) == [0, 1, 2, 3, 4]


def test_leading_axes_are_regressions_of_their_own() -> None:
    z, u = torch.randn(2, 3, 5, 4, dtype=torch.float64), torch.randn(2, 3, 5, 6, dtype=torch.float64)
    found = ridge_regression(z, u, 0.1)
    assert found.shape == (2, 3, 4, 6)
    torch.testing.assert_close(found[1, 2], ridge_regression(z[1, 2], u[1, 2], 0.1))


def test_a_ridge_too_small_for_the_digits_is_an_error_on_a_cpu() -> None:
    with pytest.raises(torch.linalg.LinAlgError, match="not positive-definite"):
        ridge_regression(torch.ones(4, 8), torch.ones(4, 2), 1e-12)
