"""GSP beside max pooling."""

from __future__ import annotations

import torch

from gspool.functional import gsp_pool
from gspool.pooling.gap_gmp import GAPGMP
from gspool.pooling.gmp_gsp import GMPGSP


def test_is_the_embedded_maximum_plus_gsp_of_the_embedded_features() -> None:
    layer = GMPGSP(6, out_dim=4, prototypes=5).double()
    x = torch.randn(2, 6, 3, 4, dtype=torch.float64)
    out = layer.pool(x)
    tokens = x.flatten(2).mT @ layer.embed.weight.T
    selected = gsp_pool(tokens, layer.gsp.prototypes, mu=0.3, epsilon=5.0)
    torch.testing.assert_close(out.pooled, x.amax((2, 3)) @ layer.embed.weight.T + selected.pooled)
    torch.testing.assert_close((out.weights, out.attributes), (selected.weights, selected.attributes))


def test_keeping_everything_is_average_plus_maximum() -> None:
    x = torch.randn(2, 6, 3, 4)
    torch.testing.assert_close(GMPGSP(6, mu=1.0)(x), GAPGMP(6)(x))


def test_one_embedding_serves_both_branches() -> None:
    names = {name for name, _ in GMPGSP(6, out_dim=4).named_parameters()}
    assert names == {"embed.weight", "gsp.prototypes"}


def test_options_of_gsp_reach_it() -> None:
    layer = GMPGSP(6, prototypes=7, mu=0.6, epsilon=2.0, learn_mu=True, learn_epsilon=True, warm_start=64)
    assert layer.gsp.prototypes.shape == (7, 6)
    torch.testing.assert_close(layer.gsp.mu.detach(), torch.tensor(0.6))
    torch.testing.assert_close(layer.gsp.epsilon.detach(), torch.tensor(2.0))
    assert layer.gsp.mu.requires_grad
    assert layer.gsp.epsilon.requires_grad
    assert layer.gsp.warm_start is not None
    assert GMPGSP(6, role="background").gsp.role == "background"
    assert GMPGSP(6, backend="torch").gsp.backend == "torch"


def test_padding_of_nan_does_not_reach_the_embedding() -> None:
    layer = GMPGSP(6, out_dim=4, prototypes=5)
    x = torch.randn(1, 4, 6)
    x[:, 3] = float("nan")
    layer(x, torch.tensor([[True, True, True, False]])).sum().backward()
    assert torch.isfinite(layer.embed.weight.grad).all()
