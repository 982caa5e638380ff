"""The GSP layer: its laws, its options, its prototypes and what it refuses."""

import pytest
import torch

from gspool import GSP, pooling
from gspool import functional as F


def test_pool_gives_what_the_function_gives():
    pool = GSP(6, prototypes=4, mu=0.4, epsilon=7.0)
    x = torch.randn(2, 9, 6)
    for ours, expected in zip(pool.pool(x), F.gsp_pool(x, pool.prototypes, 0.4, 7.0), strict=True):
        assert torch.equal(ours, expected)
    assert pool.pool(x).weights.shape == (2, 9)
    assert pool.pool(x).attributes.shape == (2, 4)


def test_background_pools_what_foreground_leaves():
    maps = torch.randn(2, 6, 3, 4)
    front = GSP(6, prototypes=4, mu=0.3)
    back = GSP(6, prototypes=4, mu=0.3, role="background")
    back.load_state_dict(front.state_dict())
    torch.testing.assert_close(0.3 * front(maps) + 0.7 * back(maps), maps.mean((2, 3)))


def test_mu_and_epsilon_are_learned_inside_their_range():
    pool = GSP(6, prototypes=4, mu=0.3, epsilon=5.0, learn_mu=True, learn_epsilon=True)
    assert pool.mu.item() == pytest.approx(0.3)
    assert pool.epsilon.item() == pytest.approx(5.0)
    x = torch.randn(2, 9, 6)
    pool.pool(x).weights.square().sum().backward()
    assert pool.mu_logit.grad != 0
    assert pool.log_epsilon.grad != 0
    with torch.no_grad():
        pool.mu_logit.fill_(-300)
        pool.log_epsilon.fill_(300)
    assert 0 < pool.mu.item() < 1e-3
    assert pool.epsilon.item() == pytest.approx(1e4)
    assert torch.isfinite(pool(x)).all()


def test_k_center_puts_prototypes_on_features_and_keeps_the_parameter():
    pool = GSP(6, prototypes=4)
    before, optimiser = pool.prototypes, torch.optim.SGD(pool.parameters(), lr=0.1)
    features = torch.randn(50, 6) / 6
    pool.init_prototypes(features)
    assert pool.prototypes is before
    assert optimiser.param_groups[0]["params"][0] is pool.prototypes
    assert pool.prototypes.requires_grad
    torch.testing.assert_close(pool.prototypes.detach(), features[F.greedy_centers(features, 4)])


@pytest.mark.parametrize("shape", [(40, 6), (5, 8, 6), (5, 6, 2, 4)])
def test_k_center_takes_vectors_tokens_and_maps(shape):
    pool = GSP(6, prototypes=4)
    features = torch.randn(shape) * 10
    pool.init_prototypes(features)
    vectors = features if len(shape) == 2 else (features.flatten(2).transpose(1, 2) if len(shape) == 4 else features)
    assert torch.cdist(pool.prototypes.detach(), F.clip_norm(vectors.reshape(-1, 6))).amin(1).max() < 1e-3
    assert torch.isfinite(pool(torch.randn(2, 9, 6))).all()


def test_refuses_features_that_cannot_become_prototypes():
    pool = GSP(6, prototypes=4)
    with pytest.raises(ValueError, match="collect more features"):
        pool.init_prototypes(torch.rand(3, 6))
    with pytest.raises(ValueError, match="6 channels"):
        pool.init_prototypes(torch.rand(9, 5))
    with pytest.raises(ValueError, match="NaN or infinity"):
        pool.init_prototypes(torch.full((9, 6), torch.nan))


@pytest.mark.parametrize("name", ["gsp", "gmp+gsp", "gemean+gsp"])
def test_backend_and_precision_reach_the_function(name, monkeypatch):
    asked = []

    def watched(*arguments):
        asked.append(arguments[5:])
        return F.gsp_pool(*arguments)

    monkeypatch.setattr("gspool.pooling.gsp.gsp_pool", watched)
    layer = pooling.create(name, dim=6, prototypes=3, backend="torch", precision="tf32")
    layer(torch.rand(2, 6, 4, 4))
    assert asked == [("torch", "foreground", "tf32")]


def test_keys_may_be_computed_from_other_features_than_those_pooled():
    head = pooling.create_embedding("gsp", 8, 4, prototypes=5, mu=0.3, epsilon=5.0, keys=3)
    x = torch.randn(2, 8, 3, 3)
    tokens = x.flatten(2).mT
    weights = F.gsp_pool(head.layer.key(tokens), head.layer.prototypes, 0.3, 5.0).weights
    torch.testing.assert_close(head(x), torch.einsum("bn,bnc->bc", weights, head.embed(tokens)))
