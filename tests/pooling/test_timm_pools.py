"""timm's own pooling layers behind this package's interface."""

from __future__ import annotations

import sys

import pytest
import torch
from timm import layers

from gspool.pooling import registry
from gspool.pooling.timm_pools import AttentionPool, AvgMax, CatAvgMax


def test_avgmax_and_catavgmax_are_timms() -> None:
    x = torch.randn(2, 4, 3, 5)
    average, maximum = x.mean((2, 3)), x.amax((2, 3))
    torch.testing.assert_close(AvgMax(4)(x), (average + maximum) / 2)
    torch.testing.assert_close(CatAvgMax(4)(x), torch.cat([average, maximum], dim=1))
    torch.testing.assert_close(AvgMax(4)(x), layers.SelectAdaptivePool2d(pool_type="avgmax", flatten=True)(x))
    assert CatAvgMax(4).out_dim == 8


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
