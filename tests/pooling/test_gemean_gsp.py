"""GSP with a generalized mean in the place of its sum."""

from __future__ import annotations

import torch

from gspool.functional import gsp_pool
from gspool.pooling.gemean import GeMean
from gspool.pooling.gemean_gsp import GeMeanGSP
from gspool.pooling.gsp import GSP


def test_equals_the_pseudo_code_written_plainly() -> None:
    layer = GeMeanGSP(6, out_dim=4, prototypes=5).double()
    x = torch.randn(2, 6, 3, 4, dtype=torch.float64)
    out = layer.pool(x)
    tokens = x.flatten(2).mT
    selected = gsp_pool(tokens @ layer.embed.weight.T, layer.gsp.prototypes, mu=0.3, epsilon=5.0)
    for b in range(2):
        powers = torch.zeros(6, dtype=torch.float64)
        for j in range(12):
            powers += (12 * selected.weights[b, j] * tokens[b, j]).clamp(min=1e-6) ** 3
        torch.testing.assert_close(out.pooled[b], layer.embed.weight @ (powers / 12) ** (1 / 3))
    torch.testing.assert_close((out.weights, out.attributes), (selected.weights, selected.attributes))


def test_keeping_everything_is_the_generalized_mean() -> None:
    x = torch.rand(2, 6, 3, 4)
    torch.testing.assert_close(GeMeanGSP(6, mu=1.0, p=4.0)(x), GeMean(6, p=4.0)(x))


def test_power_one_is_gsp() -> None:
    layer = GeMeanGSP(6, p=1.0, prototypes=5).double()
    gsp = GSP(6, prototypes=5).double()
    gsp.load_state_dict(layer.gsp.state_dict())
    # Clamping adds at most 1e-6 to a weighted feature.
    x = torch.rand(2, 6, 3, 4, dtype=torch.float64)
    torch.testing.assert_close(layer(x), gsp(x), rtol=0, atol=1e-6)


def test_masked_images_count_their_own_tokens() -> None:
    layer = GeMeanGSP(6, mu=1.0).double()
    x = torch.rand(2, 5, 6, dtype=torch.float64)
    mask = torch.tensor([[True] * 5, [True, True, False, False, False]])
    torch.testing.assert_close(layer(x, mask)[1], layer(x[1:, :2])[0])


def test_power_prototypes_and_embedding_learn() -> None:
    layer = GeMeanGSP(6, out_dim=4, prototypes=5, learn_mu=True)
    layer(torch.rand(2, 6, 3, 4)).square().sum().backward()
    gradients = {name: parameter.grad for name, parameter in layer.named_parameters()}
    assert set(gradients) == {"p", "embed.weight", "gsp.prototypes", "gsp.mu_logit"}
    assert all(gradient.abs().max() > 0 for gradient in gradients.values())


def test_power_has_the_gradient_of_finite_differences() -> None:
    layer = GeMeanGSP(4, prototypes=3).double()
    x = torch.rand(2, 5, 4, dtype=torch.float64)
    power = layer.p.detach().clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda p: torch.func.functional_call(layer, {"p": p}, (x,)), (power,))


def test_fixed_power_is_saved_but_not_trained() -> None:
    layer = GeMeanGSP(4, learn_p=False, prototypes=3)
    assert [name for name, _ in layer.named_parameters()] == ["gsp.prototypes"]
    assert layer.state_dict()["p"] == 3.0
