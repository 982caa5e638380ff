"""Distances: right where a matrix product cancels, and harmless where they have no derivative."""

import pytest
import torch

from gspool.functional import clip_norm, distance, gsp_pool, partial_transport
from gspool.functional.product_distance import product_distance
from oracle import subtracted_distance


@pytest.mark.parametrize("away", [0.0, 1e-6, 1e-4, 1e-3, 1e-2, 0.1, 1.0])
def test_the_nearest_distance_is_exact_however_small(away):
    generator = torch.Generator().manual_seed(0)
    prototypes = torch.nn.functional.normalize(torch.randn(16, 64, generator=generator), dim=-1) * 0.9
    tokens = (prototypes + away * torch.nn.functional.normalize(torch.randn(16, 64, generator=generator), dim=-1))[None]
    expected = subtracted_distance(prototypes, tokens)
    ours = product_distance(prototypes, tokens).double()
    assert ((ours - expected).abs().amax()) <= 4e-7
    assert (distance(prototypes, tokens).double() - expected).abs().amax() <= 2e-7


def test_duplicate_prototypes_get_equal_distances():
    prototypes = torch.nn.functional.normalize(torch.randn(5, 48, generator=torch.Generator().manual_seed(0)), dim=-1)
    tokens = prototypes[None] + 1e-4
    twice = product_distance(prototypes.repeat(2, 1), tokens)
    torch.testing.assert_close(twice[:, :5], twice[:, 5:], rtol=0, atol=2.5e-7)


@pytest.mark.parametrize("measure", [distance, product_distance])
def test_gradient_is_zero_where_a_token_is_a_prototype(measure):
    tokens = torch.eye(4)[None].requires_grad_()
    prototypes = torch.eye(4)[:1].clone().requires_grad_()
    measure(prototypes, tokens)[0, 0, 0].backward()
    assert (tokens.grad == 0).all()
    assert (prototypes.grad == 0).all()


@pytest.mark.parametrize("length", [0.05, 1.0, 20.0])
def test_products_give_the_distances_and_gradients_of_subtraction(length):
    # Tokens within, about and beyond the unit ball that both are clipped to.
    generator = torch.Generator().manual_seed(0)
    prototypes = torch.randn(5, 6, generator=generator, dtype=torch.float64).requires_grad_()
    tokens = (length * torch.randn(3, 7, 6, generator=generator, dtype=torch.float64)).requires_grad_()
    towards = torch.randn(3, 5, 7, generator=generator, dtype=torch.float64)
    ours, plain = product_distance(prototypes, tokens), distance(prototypes, tokens)
    torch.testing.assert_close(ours, plain)
    for gradient, expected in zip(
        torch.autograd.grad((ours * towards).sum(), (prototypes, tokens)),
        torch.autograd.grad((plain * towards).sum(), (prototypes, tokens)),
        strict=True,
    ):
        torch.testing.assert_close(gradient, expected)
    assert torch.autograd.gradcheck(product_distance, (prototypes, tokens))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_gradient_points_the_right_way_close_to_a_prototype(dtype):
    # One token 1e-5 away from its prototype, too close for products in float32 to know the direction.
    generator = torch.Generator().manual_seed(0)
    prototypes = torch.nn.functional.normalize(torch.randn(3, 8, generator=generator, dtype=torch.float64), dim=-1) / 2
    tokens = torch.cat([prototypes[:1] + 1e-5, torch.randn(4, 8, generator=generator, dtype=torch.float64) / 4])[None]
    # Both see the same rounded numbers, so that only the arithmetic differs.
    prototypes, tokens = prototypes.to(dtype), tokens.to(dtype)
    ours_x, ours_w = tokens.clone().requires_grad_(), prototypes.clone().requires_grad_()
    gsp_pool(ours_x, ours_w, 0.4, 5.0).weights[0, 0].backward()
    x, w = tokens.double().requires_grad_(), prototypes.double().requires_grad_()
    (partial_transport(distance(w, x), 0.4, 5.0).plan.sum(1) / 0.4)[0, 0].backward()
    scale = float(x.grad.abs().max())
    assert (ours_x.grad.double() - x.grad).abs().max() <= (1e-9 if dtype == torch.float64 else 2e-5) * scale
    assert (ours_w.grad.double() - w.grad).abs().max() <= (1e-9 if dtype == torch.float64 else 2e-5) * scale


def test_clipping_leaves_short_vectors_alone():
    short, long = torch.tensor([0.3, 0.4]), torch.tensor([30.0, 40.0])
    assert torch.equal(clip_norm(short), short)
    torch.testing.assert_close(clip_norm(long), torch.tensor([0.6, 0.8]))
