"""CroW with features that are dead, huge or tiny."""

from __future__ import annotations

import pytest
import torch

from gspool.pooling.crow import CroW


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
