"""DeLF against its formula, written out in loops, and the laws of a weighted mean."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gspool.pooling.delf import DeLF, log_softplus
from oracle import EXACT


def delf_in_loops(tokens, layer):
    """One image [N, D]: the sum of score times token, and the scores."""
    hidden, hidden_bias = layer.features.weight.detach().numpy(), layer.features.bias.detach().numpy()
    last, last_bias = layer.score.weight.detach().numpy()[0], layer.score.bias.item()
    scores = [
        np.log1p(np.exp(sum(last * np.maximum(hidden @ token + hidden_bias, 0.0)) + last_bias)) for token in tokens
    ]
    return sum(score * token for score, token in zip(scores, tokens, strict=True)), np.array(scores)


def layer_with_biases(**options):
    torch.manual_seed(0)
    layer = DeLF(6, hidden=10, **options).double()
    torch.nn.init.normal_(layer.features.bias)
    torch.nn.init.normal_(layer.score.bias)
    return layer


@pytest.mark.parametrize("count", [1, 7, 35])
@pytest.mark.parametrize("normalize", [False, True])
def test_formula(count, normalize):
    layer = layer_with_biases(normalize=normalize)
    x = torch.randn(2, count, 6, dtype=torch.float64)
    out = layer.pool(x)
    for image, pooled, weights in zip(x, out.pooled, out.weights, strict=True):
        total, scores = delf_in_loops(image.numpy(), layer)
        expected = total / (scores.sum() if normalize else count)
        torch.testing.assert_close(pooled, torch.tensor(expected), **EXACT)
        torch.testing.assert_close(weights, torch.tensor(scores / scores.sum()), **EXACT)


def test_weights_are_a_convex_combination():
    layer = layer_with_biases(normalize=True)
    x = 10 * torch.randn(3, 6, 4, 5, dtype=torch.float64)
    out = layer.pool(x)
    assert (out.weights >= 0).all()
    torch.testing.assert_close(out.weights.sum(1), torch.ones(3, dtype=torch.float64), **EXACT)
    torch.testing.assert_close(out.pooled, torch.einsum("bn,bcn->bc", out.weights, x.flatten(2)), **EXACT)


def test_both_scales_point_the_same_way():
    mean, convex = layer_with_biases(), layer_with_biases(normalize=True)
    x = torch.randn(3, 6, 4, 5, dtype=torch.float64)
    unit = torch.nn.functional.normalize
    torch.testing.assert_close(unit(mean(x)), unit(convex(x)), **EXACT)


def test_equal_scores_are_average_pooling():
    layer = layer_with_biases(normalize=True)
    torch.nn.init.zeros_(layer.score.weight)
    x = torch.randn(2, 6, 3, 5, dtype=torch.float64)
    torch.testing.assert_close(layer(x), x.mean((2, 3)), **EXACT)


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


def test_paper_settings():
    layer = DeLF(16)
    assert layer.features.weight.shape == (512, 16)
    assert layer.score.weight.shape == (1, 512)
    assert not layer.normalize
    assert layer.embedding == "after"
    assert "hidden=512" in repr(layer)
