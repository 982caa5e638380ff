"""Features that are dead, huge, tiny or all alike: values and gradients stay finite and right."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gspool.pooling.crow import CroW
from gspool.pooling.delf import DeLF, log_softplus
from gspool.pooling.gemean import GeMean
from gspool.pooling.otp import OTP
from gspool.pooling.vlad import NetVLAD


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
    torch.testing.assert_close(out.weights[1], torch.full((9,), 1 / 9))
    assert x.grad[1].abs().max() == 0
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


def test_a_prototype_that_every_token_shuns_keeps_its_direction():
    """Its assignments underflow in float32; its row, which is divided by them, must not."""
    layer = NetVLAD(6, prototypes=3, token_dim=4)
    with torch.no_grad():
        layer.assign.bias.copy_(torch.tensor([1.0, -500.0, 0.5]))
    x = torch.randn(2, 6, 3, 3, requires_grad=True)
    out = layer.pool(x)
    torch.testing.assert_close(out.pooled.view(2, 3, 4).norm(dim=2), torch.ones(2, 3))
    assert (out.attributes[:, 1] == 0).all()
    out.pooled.sum().backward()
    assert x.grad.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_scores_that_underflow_together_are_still_compared(dtype):
    """Far below zero the softplus is an exponential, so the weights become a softmax of the logits."""
    layer = DeLF(6, hidden=10, normalize=True).to(dtype)
    torch.nn.init.normal_(layer.features.bias)
    torch.nn.init.constant_(layer.score.bias, -1e4)
    x = torch.randn(2, 15, 6, dtype=dtype, requires_grad=True)
    out = layer.pool(x)
    logits = layer.score(layer.features(x).relu()).squeeze(2)
    torch.testing.assert_close(out.weights, logits.softmax(1))
    out.pooled.sum().backward()
    assert x.grad.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_log_softplus_is_accurate_over_the_seam(dtype):
    logits = torch.linspace(-60, 60, 2001, dtype=dtype, requires_grad=True)
    values = log_softplus(logits)
    values.sum().backward()
    wide = logits.detach().double().numpy()
    softplus = np.log1p(np.exp(wide))
    # PyTorch's softplus has a seam of its own at 20, where it leaves exp(-20) out.
    tolerance = {"rtol": max(16 * torch.finfo(dtype).eps, 1e-8), "atol": torch.finfo(dtype).eps}
    np.testing.assert_allclose(values.detach().numpy(), np.log(softplus), **tolerance)
    np.testing.assert_allclose(logits.grad.numpy(), 1 / (1 + np.exp(-wide)) / softplus, **tolerance)


def test_tokens_that_sit_on_prototypes_have_finite_gradients():
    layer = OTP(4, prototypes=3, token_dim=4).double()
    torch.nn.init.eye_(layer.embed.weight)
    x = layer.prototypes.detach()[None].clone().requires_grad_()
    layer(x).square().sum().backward()
    assert x.grad.isfinite().all()
    assert layer.prototypes.grad.isfinite().all()


def test_dead_channels_and_padding_of_nan_leave_the_gradient_of_the_power_finite() -> None:
    x = torch.zeros(1, 2, 4, 1)
    x[0, 1] = torch.tensor([[1.0], [2.0], [0.0], [float("nan")]])
    x.requires_grad_()
    layer = GeMean(2)
    layer(x, torch.tensor([[[True], [True], [True], [False]]])).sum().backward()
    assert torch.isfinite(layer.p.grad)
    assert torch.isfinite(x.grad).all()
    assert x.grad[0, 1, 0, 0] > 0
