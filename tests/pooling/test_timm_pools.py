"""timm's own pooling layers behind this package's interface."""

from __future__ import annotations

import sys

import pytest
import torch
from timm import layers

from gspool.pooling import registry
from gspool.pooling.timm_pools import LSE, AttentionPool, AvgMax, CatAvgMax, SimPool


def test_avgmax_and_catavgmax_are_timms() -> None:
    x = torch.randn(2, 4, 3, 5)
    average, maximum = x.mean((2, 3)), x.amax((2, 3))
    torch.testing.assert_close(AvgMax(4)(x), (average + maximum) / 2)
    torch.testing.assert_close(CatAvgMax(4)(x), torch.cat([average, maximum], dim=1))
    torch.testing.assert_close(AvgMax(4)(x), layers.SelectAdaptivePool2d(pool_type="avgmax", flatten=True)(x))
    assert CatAvgMax(4).out_dim == 8


def test_log_sum_exp_is_its_formula() -> None:
    x = torch.randn(2, 4, 3, 5, dtype=torch.float64)
    expected = (torch.exp(2.5 * x).flatten(2).mean(2)).log() / 2.5
    torch.testing.assert_close(LSE(4, r=2.5).double()(x), expected)


def test_log_sum_exp_lies_between_average_and_maximum() -> None:
    x = torch.randn(2, 4, 3, 5)
    torch.testing.assert_close(LSE(4, r=1e-2)(x), x.mean((2, 3)), rtol=0, atol=2e-2)
    torch.testing.assert_close(LSE(4, r=1e4)(x), x.amax((2, 3)), rtol=0, atol=1e-3)


def test_simpool_is_attention_of_the_average_written_plainly() -> None:
    layer = SimPool(6).double()
    x = torch.randn(2, 5, 6, dtype=torch.float64)
    out = layer(x)
    for b in range(2):
        values = torch.nn.functional.layer_norm(x[b], (6,))
        query = layer.timm.q.weight @ x[b].mean(0)
        scores = torch.stack([(layer.timm.k.weight @ value) @ query / 6**0.5 for value in values])
        share = scores.exp() / scores.exp().sum()
        torch.testing.assert_close(out[b], sum(share[j] * values[j] for j in range(5)))


def test_attention_is_the_modules_own_on_tokens_and_maps() -> None:
    layer = AttentionPool(16, num_heads=4)
    x = torch.randn(2, 16, 3, 5)
    torch.testing.assert_close(layer(x), layer.timm(x.flatten(2).mT))
    torch.testing.assert_close(layer(x.flatten(2).mT), layer(x))


@pytest.mark.parametrize("fused", [True, False])
def test_attention_leaves_padding_out_whatever_it_holds(fused: bool) -> None:
    layer = AttentionPool(16, num_heads=4)
    layer.timm.fused_attn = fused
    x = torch.randn(2, 6, 16)
    mask = torch.tensor([[True] * 4 + [False] * 2] * 2)
    expected = layer(x[:, :4])
    x[:, 4:] = float("nan")
    torch.testing.assert_close(layer(x, mask), expected)


@pytest.mark.parametrize("name", ["avgmax", "catavgmax", "attention", "simpool", "lse"])
def test_a_missing_timm_is_named_with_its_cure(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(ImportError, match=r'pip install "gspool\[train\]"'):
        registry.create(name, dim=8)


def test_a_timm_too_old_is_named_with_its_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(layers, "SimPool1d")
    with pytest.raises(ImportError, match=r'no SimPool1d.*pip install -U "gspool\[train\]"'):
        registry.create("simpool", dim=8)
