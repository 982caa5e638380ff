"""OTP against POT, and the laws of balanced transport."""

from __future__ import annotations

import numpy as np
import ot
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gspool.pooling.otp import OTP, balanced_transport
from oracle import EXACT


@settings(max_examples=30)
@given(
    prototypes=st.integers(1, 20), tokens=st.integers(1, 60), epsilon=st.floats(0.01, 5.0), seed=st.integers(0, 10_000)
)
def test_marginals_hold(prototypes, tokens, epsilon, seed):
    cost = 2 * torch.rand(2, prototypes, tokens, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    plan = balanced_transport(cost, epsilon, iterations=2000)
    assert (plan >= 0).all()
    torch.testing.assert_close(plan.sum(1), torch.full((2, tokens), 1 / tokens, dtype=torch.float64), **EXACT)
    shares = torch.full((2, prototypes), 1 / prototypes, dtype=torch.float64)
    torch.testing.assert_close(plan.sum(2), shares, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(("prototypes", "token_dim"), [(8, 16), (64, 128)])
def test_ten_iterations_are_enough_for_the_paper_settings(prototypes, token_dim):
    torch.manual_seed(0)
    layer = OTP(32, prototypes=prototypes, token_dim=token_dim).double()
    attributes = layer.pool(torch.randn(4, 32, 8, 8, dtype=torch.float64)).attributes
    torch.testing.assert_close(attributes * prototypes, torch.ones_like(attributes), rtol=1e-6, atol=0)


def test_plan_is_that_of_pot():
    cost = torch.rand(5, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    expected = ot.sinkhorn(np.full(5, 1 / 5), np.full(9, 1 / 9), cost.numpy(), reg=1 / 2.0, stopThr=1e-14)
    plan = balanced_transport(cost[None], epsilon=2.0, iterations=200)[0]
    torch.testing.assert_close(plan, torch.tensor(expected), rtol=1e-7, atol=1e-10)


def test_a_sharp_plan_is_the_unsmoothed_optimum():
    """exp(-epsilon c) is 0 for most entries here; logarithms do not mind."""
    cost = 2 * torch.rand(4, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    optimum = ot.emd2(np.full(4, 1 / 4), np.full(8, 1 / 8), cost.numpy())
    plan = balanced_transport(cost[None], epsilon=2000.0, iterations=5000)[0]
    assert plan.isfinite().all()
    assert abs((plan * cost).sum().item() - optimum) < 1e-3
