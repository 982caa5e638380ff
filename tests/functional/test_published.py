"""The published algorithms: where they agree with the exact solution, and where they do not."""

import pytest
import torch

from gspool.functional import partial_transport
from gspool.functional.published import fixed_point_transport, hoisted_fixed_point_transport
from oracle import random_problem, subtracted_distance


@pytest.fixture
def cost():
    x, w = random_problem(3, 20, 4, dim=6)
    return subtracted_distance(w, x)


def test_the_converged_fixed_point_is_the_solution(cost):
    for mu in (0.1, 0.3, 0.5, 0.7):
        for ours, theirs in zip(
            partial_transport(cost, mu, 5.0), fixed_point_transport(cost, mu, 5.0, steps=5000), strict=True
        ):
            torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-13)


def test_a_hundred_steps_are_not_enough_at_large_mu(cost):
    exact, published = partial_transport(cost, 0.95, 20.0), fixed_point_transport(cost, 0.95, 20.0, steps=100)
    assert (exact.plan.sum(-2) - published.plan.sum(-2)).abs().max() * 20 > 1e-4


def test_taking_the_common_sum_once_changes_nothing(cost):
    for plain, hoisted in zip(
        fixed_point_transport(cost, 0.3, 5.0), hoisted_fixed_point_transport(cost, 0.3, 5.0), strict=True
    ):
        torch.testing.assert_close(plain, hoisted)
