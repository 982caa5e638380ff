"""Laws and gradients of (P2), and the published algorithms: where they agree with the exact solution."""

from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gspool.functional import hard_selection, partial_transport
from gspool.functional.published import closed_form_transport, fixed_point_transport, hoisted_fixed_point_transport
from oracle import random_problem, subtracted_distance


def random_cost(batch=2, prototypes=3, tokens=6, dim=5):
    x, w = random_problem(batch, tokens, prototypes, dim)
    return subtracted_distance(w, x)


@settings(max_examples=60)
@given(
    tokens=st.sampled_from([1, 2, 7, 63]),
    prototypes=st.sampled_from([1, 3, 65]),
    mu=st.floats(0.001, 1.0),
    epsilon=st.floats(0.0, 1e4),
)
def test_mass_is_conserved(tokens, prototypes, mu, epsilon):
    cost = random_cost(3, prototypes, tokens)
    residual, plan = partial_transport(cost, mu, epsilon)
    assert (residual >= 0).all()
    assert (plan >= 0).all()
    torch.testing.assert_close(residual + plan.sum(-2), torch.full_like(residual, 1 / tokens), rtol=1e-12, atol=0)
    torch.testing.assert_close(plan.sum((-1, -2)), torch.full((3,), mu, dtype=plan.dtype), rtol=1e-11, atol=1e-13)


def test_mu_one_is_average_pooling():
    residual, plan = partial_transport(random_cost(), 1, 5.0)
    assert (residual == 0).all()
    torch.testing.assert_close(plan.sum(-2), torch.full((2, 6), 1 / 6, dtype=plan.dtype))


def test_epsilon_zero_is_uniform():
    residual, plan = partial_transport(random_cost(), 0.3, 0.0)
    torch.testing.assert_close(residual, torch.full_like(residual, 0.7 / 6))
    torch.testing.assert_close(plan, torch.full_like(plan, 0.3 / 18))


def test_large_epsilon_is_the_hard_selection():
    cost = random_cost(4, 5, 11)
    for ours, limit in zip(partial_transport(cost, 0.4, 1e4), hard_selection(cost, 0.4), strict=True):
        torch.testing.assert_close(ours, limit, rtol=0, atol=1e-6)


def test_a_cost_common_to_all_prototypes_of_all_tokens_changes_nothing():
    cost = random_cost()
    for shifted, plain in zip(partial_transport(cost + 3.0, 0.3, 5.0), partial_transport(cost, 0.3, 5.0), strict=True):
        torch.testing.assert_close(shifted, plain)


def test_leading_axes_and_mu_per_image():
    cost = random_cost(6).reshape(2, 3, 3, 6)
    mu = torch.linspace(0.1, 1.0, 6, dtype=torch.float64).reshape(2, 3)
    together = partial_transport(cost, mu, 5.0)
    for i in range(2):
        for j in range(3):
            alone = partial_transport(cost[i, j], float(mu[i, j]), 5.0)
            torch.testing.assert_close(together.residual[i, j], alone.residual)
            torch.testing.assert_close(together.plan[i, j], alone.plan)


def test_a_mask_equals_leaving_the_tokens_out():
    cost = random_cost(3, 4, 9)
    mask = torch.arange(9) < torch.tensor([[9], [5], [1]])
    residual, plan = partial_transport(cost, 0.35, 8.0, mask)
    assert (residual[~mask] == 0).all()
    assert (plan.transpose(1, 2)[~mask] == 0).all()
    for i, valid in enumerate((9, 5, 1)):
        alone = partial_transport(cost[i, :, :valid], 0.35, 8.0)
        torch.testing.assert_close(residual[i, :valid], alone.residual)
        torch.testing.assert_close(plan[i, :, :valid], alone.plan)


@pytest.mark.parametrize("masked", [False, True])
def test_gradients_in_cost_mu_and_epsilon(masked):
    cost = random_cost(3, 4, 5).requires_grad_()
    mu = torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64, requires_grad=True)
    epsilon = torch.tensor(4.0, dtype=torch.float64, requires_grad=True)
    mask = torch.arange(5) < torch.tensor([[5], [3], [2]]) if masked else None
    assert torch.autograd.gradcheck(lambda c, m, e: tuple(partial_transport(c, m, e, mask)), (cost, mu, epsilon))


def test_gradient_in_mu_has_its_limit_at_one():
    cost = random_cost(1, 3, 6)
    gradients = []
    for value in (1 - 1e-9, 1.0):
        mu = torch.tensor(value, dtype=torch.float64, requires_grad=True)
        (partial_transport(cost, mu, 5.0).plan * cost).sum().backward()
        gradients.append(mu.grad)
    torch.testing.assert_close(*gradients, rtol=1e-6, atol=0)


def test_the_converged_fixed_point_is_the_solution():
    cost = random_cost(3, 4, 20, 6)
    for mu in (0.1, 0.3, 0.5, 0.7):
        for ours, theirs in zip(
            partial_transport(cost, mu, 5.0), fixed_point_transport(cost, mu, 5.0, steps=5000), strict=True
        ):
            torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-13)


def test_a_hundred_steps_are_not_enough_at_large_mu():
    cost = random_cost(3, 4, 20, 6)
    exact, published = partial_transport(cost, 0.95, 20.0), fixed_point_transport(cost, 0.95, 20.0, steps=100)
    assert (exact.plan.sum(-2) - published.plan.sum(-2)).abs().max() * 20 > 1e-4


def test_taking_the_common_sum_once_changes_nothing():
    cost = random_cost(3, 4, 20, 6)
    for plain, hoisted in zip(
        fixed_point_transport(cost, 0.3, 5.0), hoisted_fixed_point_transport(cost, 0.3, 5.0), strict=True
    ):
        torch.testing.assert_close(plain, hoisted)


@pytest.mark.parametrize("mu", [0.1, 0.3, 0.5])
@pytest.mark.parametrize("published", [fixed_point_transport, closed_form_transport])
def test_gradient_equals_that_of_the_converged_fixed_point(published, mu):
    """By automatic differentiation of the iteration, and by the corrected proposition."""
    cost = random_cost(2, 3, 6)
    gradients = []
    for solver in (partial_transport, partial(published, steps=2000)):
        leaf = cost.clone().requires_grad_()
        residual, plan = solver(leaf, mu, 5.0)
        (residual.square().sum() + (plan * cost.sin()).sum()).backward()
        gradients.append(leaf.grad)
    torch.testing.assert_close(*gradients, rtol=1e-8, atol=1e-11)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(dtype):
    cost = random_cost(2, 3, 40).to(dtype).requires_grad_()
    result = partial_transport(cost, 0.3, 5.0)
    assert result.plan.dtype == torch.float32
    torch.testing.assert_close(result.plan, partial_transport(cost.float(), 0.3, 5.0).plan)
    result.plan.square().sum().backward()
    assert cost.grad.dtype == dtype


def test_a_second_derivative_is_refused_rather_than_wrong():
    cost = random_cost().requires_grad_()
    (first,) = torch.autograd.grad(partial_transport(cost, 0.3, 5.0).plan.square().sum(), cost, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        first.sum().backward()
