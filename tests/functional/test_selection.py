"""(P1) against SciPy's linear programming."""

import numpy as np
import pytest
import torch
from scipy.optimize import linprog

from gspool.functional import hard_selection
from oracle import random_problem, subtracted_distance


def linear_programme(cost, mu):
    """Solve (P1) as it is written: variables rho (n), then pi row by row (m n)."""
    m, n = cost.shape
    objective = np.concatenate([np.zeros(n), cost.flatten()])
    tokens = np.hstack([np.eye(n)] * (m + 1))
    mass = np.concatenate([np.zeros(n), np.ones(m * n)])[None]
    solved = linprog(objective, A_eq=np.vstack([tokens, mass]), b_eq=np.append(np.full(n, 1 / n), mu), bounds=(0, None))
    return solved.x[:n], solved.x[n:].reshape(m, n)


@pytest.mark.parametrize(("tokens", "prototypes"), [(1, 1), (5, 1), (7, 3), (12, 4)])
@pytest.mark.parametrize("mu", [0.05, 0.3, 0.61, 1.0])
def test_equals_scipys_linear_programming(tokens, prototypes, mu):
    x, w = random_problem(1, tokens, prototypes, dim=5, seed=tokens)
    cost = subtracted_distance(w, x)[0]
    residual, plan = hard_selection(cost, mu)
    expected_residual, expected_plan = linear_programme(cost.numpy(), mu)
    np.testing.assert_allclose(residual, expected_residual, atol=1e-12)
    np.testing.assert_allclose(plan, expected_plan, atol=1e-12)


def test_mu_per_image_and_mask():
    x, w = random_problem(2, 6, 3, dim=5)
    cost = subtracted_distance(w, x)
    mask = torch.tensor([[True] * 6, [True] * 4 + [False] * 2])
    residual, plan = hard_selection(cost, torch.tensor([0.3, 0.7]), mask)
    alone = hard_selection(cost[1, :, :4], torch.tensor(0.7))
    torch.testing.assert_close(plan[1, :, :4], alone.plan)
    assert (plan[1, :, 4:] == 0).all()
    assert (residual[1, 4:] == 0).all()
    torch.testing.assert_close(plan.sum((1, 2)), torch.tensor([0.3, 0.7]).double())
