"""CroW pooling."""

from __future__ import annotations

import math

import pytest
import torch

from gspool.pooling.crow import CroW, scaled_to_one, spatial_saliency


def plain_crow(image: torch.Tensor) -> list[float]:
    """One image [C, H, W], number by number, as Sec. 3 of Kalantidis et al. with the mean sigmoid for Q."""
    channels, height, width = image.shape
    places = [(row, column) for row in range(height) for column in range(width)]
    value = {(c, place): max(0.0, image[c, place[0], place[1]].item()) for c in range(channels) for place in places}
    mass = {place: sum(value[c, place] for c in range(channels)) for place in places}
    norm = math.sqrt(sum(m * m for m in mass.values()))
    spatial = {place: math.sqrt(mass[place] / norm) for place in places}
    activity = [sum(1 / (1 + math.exp(-value[c, place])) for place in places) / len(places) for c in range(channels)]
    rarity = [math.log(sum(activity) / activity[c]) for c in range(channels)]
    return [rarity[c] * sum(spatial[p] * value[c, p] for p in places) / len(places) for c in range(channels)]


def test_equals_the_formula_written_plainly() -> None:
    x = torch.randn(2, 4, 3, 5, dtype=torch.float64)
    expected = torch.tensor([plain_crow(image) for image in x], dtype=torch.float64)
    torch.testing.assert_close(CroW(4)(x), expected)


def test_weights_are_the_saliency_scaled_to_one() -> None:
    x = torch.tensor([[[1.0, 0.0], [1.0, 3.0], [-2.0, 0.0]]], dtype=torch.float64)
    # S = 1, 4, 0: roots 1, 2, 0.
    torch.testing.assert_close(CroW(2).pool(x).weights, torch.tensor([[1 / 3, 2 / 3, 0]], dtype=torch.float64))


def test_rare_channels_weigh_more() -> None:
    x = torch.zeros(1, 2, 4, 4)
    x[0, 0] = 1.0
    x[0, 1, 0, 0] = 4.0
    often, rarely = CroW(2)(x)[0] / (x[0].flatten(1).mean(1))
    assert rarely > often


def test_dead_tokens_and_dead_images_have_finite_gradients() -> None:
    x = torch.rand(2, 4, 3, 3)
    x[0, :, 1, 1] = 0.0
    x[1] = -1.0
    x.requires_grad_()
    out = CroW(4).pool(x)
    (out.pooled.sum() + out.weights.square().sum()).backward()
    assert torch.isfinite(x.grad).all()
    assert out.pooled[1].tolist() == [0.0] * 4
    torch.testing.assert_close(out.weights.sum(1), torch.ones(2))
    assert x.grad[0, :, 1, 1].abs().max() == 0


@pytest.mark.parametrize("size", [1e-18, 1e-20, 1e-30, 1.0, 1e18, 1e30])
@pytest.mark.parametrize("masked", [False, True])
def test_features_of_any_size_equal_those_of_float64(size: float, masked: bool) -> None:
    x = (size * torch.randn(2, 6, 5, dtype=torch.float64)).float()
    mask = torch.tensor([[True] * 3 + [False] * 2 + [True], [True] * 5 + [False]]) if masked else None
    found = []
    for leaf in (x.clone().requires_grad_(), x.double().requires_grad_()):
        out = CroW(5).pool(leaf, mask)
        (out.pooled.double().sum() / size + out.weights.double().square().sum()).backward()
        found.append((out.pooled.double() / size, out.weights.double(), leaf.grad.double() * size))
    for ours, exact in zip(*found, strict=True):
        torch.testing.assert_close(ours, exact, rtol=1e-5, atol=1e-6)


def test_saliency_of_nothing_is_flat() -> None:
    nothing = torch.zeros(1, 3, 2, requires_grad=True)
    saliency = spatial_saliency(nothing)
    (gradient,) = torch.autograd.grad(saliency.sum(), nothing)
    assert saliency.tolist() == [[0.0] * 3]
    assert gradient.tolist() == [[[0.0] * 2] * 3]


def test_weights_that_are_all_zero_become_the_others_and_pass_no_gradient() -> None:
    nothing = torch.zeros(1, 3, requires_grad=True)
    weights = scaled_to_one(nothing, torch.tensor([[0.5, 0.5, 0.0]]))
    (gradient,) = torch.autograd.grad(weights.square().sum(), nothing)
    assert weights.tolist() == [[0.5, 0.5, 0.0]]
    assert gradient.tolist() == [[0.0] * 3]
