"""The attention of SOLAR, and its batch norm of real tokens."""

from __future__ import annotations

import torch

from gspool.pooling.solar import SOLAR, token_batch_norm
from oracle import EXACT


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
    ours, theirs = (torch.nn.BatchNorm1d(4).double() for _ in range(2))
    for _ in range(3):
        out, expected = token_batch_norm(ours, tokens, mask), theirs(tokens[mask])
    torch.testing.assert_close(out[mask], expected, **EXACT)
    torch.testing.assert_close(ours.state_dict(), theirs.state_dict(), **EXACT)


def test_frozen_statistics_stay():
    layer = trained_layer().train()
    layer.query_norm.eval()
    before = layer.query_norm.running_mean.clone(), layer.key_norm.running_mean.clone()
    mask = torch.ones(2, 12, dtype=torch.bool)
    mask[0, 5:] = False
    layer(torch.randn(2, 12, 6, dtype=torch.float64), mask)
    assert torch.equal(layer.query_norm.running_mean, before[0])
    assert not torch.equal(layer.key_norm.running_mean, before[1])
