"""The scores of DeLF, also where they underflow."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gspool.pooling.delf import DeLF, log_softplus
from oracle import EXACT


def layer_with_biases(**options):
    torch.manual_seed(0)
    layer = DeLF(6, hidden=10, **options).double()
    torch.nn.init.normal_(layer.features.bias)
    torch.nn.init.normal_(layer.score.bias)
    return layer


def test_both_scales_point_the_same_way():
    mean, convex = layer_with_biases(), layer_with_biases(normalize=True)
    x = torch.randn(3, 6, 4, 5, dtype=torch.float64)
    unit = torch.nn.functional.normalize
    torch.testing.assert_close(unit(mean(x)), unit(convex(x)), **EXACT)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_scores_that_underflow_together_are_still_compared(dtype):
    """Far below zero the softplus is an exponential, so the weights become a softmax of the logits."""
    layer = layer_with_biases(normalize=True).to(dtype)
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
