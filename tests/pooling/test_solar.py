"""SOLAR against its formula, written out in loops, and what it becomes without attention."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gspool.pooling.gemean import GeMean
from gspool.pooling.solar import SOLAR, token_batch_norm
from oracle import EXACT


def numbers(tensor):
    return tensor.detach().numpy()


def trained_layer(**options):
    """A layer whose batch norms have statistics and scales of their own."""
    torch.manual_seed(0)
    layer = SOLAR(6, **options).double()
    for norm in (layer.query_norm, layer.key_norm):
        torch.nn.init.normal_(norm.running_mean)
        torch.nn.init.uniform_(norm.running_var, 0.5, 2.0)
        torch.nn.init.normal_(norm.weight)
        torch.nn.init.normal_(norm.bias)
    for linear in (layer.query, layer.key, layer.value, layer.output):
        torch.nn.init.normal_(linear.bias)
    return layer.eval()


def solar_in_loops(tokens, layer):
    def mapped(linear, token):
        return numbers(linear.weight) @ token + numbers(linear.bias)

    def normed(norm, vector):
        unit = (vector - numbers(norm.running_mean)) / np.sqrt(numbers(norm.running_var) + norm.eps)
        return np.maximum(unit * numbers(norm.weight) + numbers(norm.bias), 0.0)

    queries = [normed(layer.query_norm, mapped(layer.query, token)) for token in tokens]
    keys = [normed(layer.key_norm, mapped(layer.key, token)) for token in tokens]
    values = [mapped(layer.value, token) for token in tokens]
    power = layer.mean.p.item()
    total = np.zeros(tokens.shape[1])
    for token, query in zip(tokens, queries, strict=True):
        attention = np.array([np.exp(query @ key / np.sqrt(len(key))) for key in keys])
        attention /= attention.sum()
        found = sum(share * value for share, value in zip(attention, values, strict=True))
        total += np.maximum(token + mapped(layer.output, found), 1e-6) ** power
    return (total / len(tokens)) ** (1 / power)


@pytest.mark.parametrize("count", [1, 7, 30])
@pytest.mark.parametrize(("reduction", "p"), [(1, 3.0), (2, 1.5)])
def test_formula(count, reduction, p):
    layer = trained_layer(reduction=reduction, p=p)
    x = torch.randn(2, count, 6, dtype=torch.float64)
    expected = np.stack([solar_in_loops(image.numpy(), layer) for image in x])
    torch.testing.assert_close(layer(x), torch.tensor(expected), **EXACT)


def test_without_an_output_the_attention_adds_nothing_to_the_generalized_mean():
    layer = trained_layer()
    torch.nn.init.zeros_(layer.output.weight)
    torch.nn.init.zeros_(layer.output.bias)
    x = torch.randn(2, 6, 3, 5, dtype=torch.float64)
    torch.testing.assert_close(layer(x), GeMean(6, p=3.0)(x), **EXACT)


def test_equal_keys_attend_to_the_average():
    """Keys that do not tell tokens apart give every token the average value."""
    layer = trained_layer(p=1.0)
    torch.nn.init.zeros_(layer.key.weight)
    x = 0.1 * torch.rand(2, 12, 6, dtype=torch.float64)
    torch.nn.init.constant_(layer.output.bias, 10.0)  # far above the clamp of the generalized mean
    expected = x.mean(1) + layer.output(layer.value(x.mean(1)))
    torch.testing.assert_close(layer(x), expected, **EXACT)


def test_batch_norm_of_real_tokens_is_batch_norm_of_those_tokens_alone():
    torch.manual_seed(0)
    tokens, mask = torch.randn(3, 7, 4, dtype=torch.float64), torch.rand(3, 7) < 0.6
    for momentum in (0.1, None):
        ours, theirs = (torch.nn.BatchNorm1d(4, momentum=momentum).double() for _ in range(2))
        for _ in range(3):
            out, expected = token_batch_norm(ours, tokens, mask), theirs(tokens[mask])
        torch.testing.assert_close(out[mask], expected, **EXACT)
        torch.testing.assert_close(ours.state_dict(), theirs.state_dict(), **EXACT)


def test_batch_norm_without_running_statistics():
    torch.manual_seed(0)
    norm = torch.nn.BatchNorm1d(4, track_running_stats=False).double()
    tokens, mask = torch.randn(3, 7, 4, dtype=torch.float64), torch.rand(3, 7) < 0.6
    torch.testing.assert_close(token_batch_norm(norm, tokens, mask)[mask], norm(tokens[mask]), **EXACT)
    # Without statistics to freeze, evaluation takes those of the batch as well.
    norm.eval()
    torch.testing.assert_close(token_batch_norm(norm, tokens, mask)[mask], norm(tokens[mask]), **EXACT)


def test_frozen_statistics_stay():
    layer = trained_layer().train()
    layer.query_norm.eval()
    before = layer.query_norm.running_mean.clone(), layer.key_norm.running_mean.clone()
    mask = torch.ones(2, 12, dtype=torch.bool)
    mask[0, 5:] = False
    layer(torch.randn(2, 12, 6, dtype=torch.float64), mask)
    assert torch.equal(layer.query_norm.running_mean, before[0])
    assert not torch.equal(layer.key_norm.running_mean, before[1])


def test_paper_settings():
    layer = SOLAR(16)
    assert layer.query.weight.shape == (16, 16)
    assert layer.mean.p.item() == 3.0
    assert layer.mean.p.requires_grad
    assert layer.mean.minimum == 1e-6
    assert not SOLAR(16, learn_p=False).mean.p.requires_grad
    assert layer.embedding == "after"
