"""The weights against an independent float64 bisection, over the whole range of sizes, epsilon and mu."""

import itertools

import pytest
import torch

from gspool.functional import gsp_pool, partial_transport
from oracle import WEIGHT_ERROR, bisected_shares, pooled, random_problem, relative_weight_error, subtracted_distance

TOKENS = (1, 2, 7, 49, 196, 1024)
PROTOTYPES = (1, 8, 65, 128)
EPSILON = (0, 0.1, 0.5, 5, 20, 100, 1000)
MU = (0.01, 0.3, 0.7, 0.95, 0.999, 1)


# Every problem is solved for all mu at once, as a batch.
MU_OF_IMAGES = torch.tensor(MU, dtype=torch.float64).repeat_interleave(2)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("tokens", TOKENS)
def test_weights_of_gsp_pool_equal_the_bisection(tokens, dtype):
    for prototypes, epsilon in itertools.product(PROTOTYPES, EPSILON):
        x, w = random_problem(2, tokens, prototypes, dim=24, dtype=dtype, seed=prototypes, spread=0.5)
        x = x.repeat(len(MU), 1, 1)
        weights, expected = gsp_pool(x, w, MU_OF_IMAGES, epsilon).weights, pooled(x, w, MU_OF_IMAGES, epsilon)[1]
        error = relative_weight_error(weights, expected)
        assert error <= WEIGHT_ERROR[dtype] * max(1, epsilon / 10), (prototypes, epsilon, error)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("tokens", TOKENS)
def test_weights_of_partial_transport_equal_the_bisection(tokens, dtype):
    for prototypes, epsilon in itertools.product(PROTOTYPES, EPSILON):
        x, w = random_problem(2, tokens, prototypes, dim=8, seed=prototypes)
        cost = subtracted_distance(w, x).to(dtype).repeat(len(MU), 1, 1)
        plan = partial_transport(cost, MU_OF_IMAGES, epsilon).plan
        error = relative_weight_error(plan.sum(-2), bisected_shares(cost, MU_OF_IMAGES, epsilon) / tokens)
        assert error <= WEIGHT_ERROR[dtype] * max(1, epsilon / 10), (prototypes, epsilon, error)


@pytest.mark.parametrize("epsilon", [5.0, 100.0, 1e4])
@pytest.mark.parametrize("mu", [1 / 3, 0.5, 0.25])
def test_duplicate_tokens_and_exact_plateaus_equal_the_bisection(epsilon, mu):
    # Few distinct tokens, each many times, and n mu a whole number: the root lies on a plateau or on a steep riser.
    x, w = random_problem(8, 3, 4, dim=8)
    x = x.repeat_interleave(4, dim=1)
    error = relative_weight_error(gsp_pool(x, w, mu, epsilon).weights, pooled(x, w, mu, epsilon)[1])
    assert error <= WEIGHT_ERROR[torch.float64] * max(1, epsilon / 10)


def test_pooled_vector_and_attributes_equal_the_long_way():
    x, w = random_problem(3, 50, 9, dim=12)
    expected = pooled(x, w, 0.3, 5.0)
    for ours, theirs in zip(gsp_pool(x, w, 0.3, 5.0), expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


def test_a_float32_mu_close_to_one_keeps_its_digits():
    x, w = random_problem(4, 1024, 1, dim=16, dtype=torch.float32)
    mu = torch.full((4,), 0.999)
    expected = pooled(x, w, mu.double(), 20.0)[1]
    assert relative_weight_error(gsp_pool(x, w, mu, 20.0).weights, expected) <= 2 * WEIGHT_ERROR[torch.float32]
