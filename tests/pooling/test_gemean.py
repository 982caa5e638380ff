"""Generalized mean pooling."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gspool.pooling.gemean import SMALLEST_POWER, GeMean
from gspool.pooling.gmp import GMP


@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e6])
def test_large_power_is_max_pooling_without_overflow(scale: float) -> None:
    x = scale * (torch.rand(2, 8, 5, 5) + 0.1)
    torch.testing.assert_close(GeMean(8, p=1e5)(x), GMP(8)(x), rtol=1e-4, atol=0)


def test_grows_with_the_power_between_average_and_maximum() -> None:
    x = torch.rand(1, 4, 6, 6, dtype=torch.float64) + 0.1
    means = torch.stack([GeMean(4, p=p, learn_p=False)(x) for p in (1.0, 2.0, 3.0, 10.0, 100.0)])
    assert (means.diff(dim=0) > 0).all()
    assert (means[-1] < GMP(4)(x)).all()


@settings(max_examples=60)
@given(
    p=st.floats(SMALLEST_POWER, 1e6),
    values=st.lists(st.floats(1e-6, 1e30), min_size=1, max_size=9),
)
def test_any_power_of_any_features_lies_between_the_least_and_the_largest(p: float, values: list[float]) -> None:
    x = torch.tensor(values, dtype=torch.float64)[None, :, None]
    mean = GeMean(1, p=p, learn_p=False).double()(x).item()
    assert min(values) * (1 - 1e-9) <= mean <= max(values) * (1 + 1e-9)


def test_bfloat16_is_computed_in_float32() -> None:
    x = (torch.rand(2, 8, 14, 14) + 0.1).bfloat16()
    out = GeMean(8)(x)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out, GeMean(8)(x.float()).bfloat16(), rtol=0, atol=0)


def test_a_power_that_wandered_below_zero_is_held_at_the_smallest() -> None:
    x = torch.rand(1, 4, 6, 6) + 0.1
    layer = GeMean(4)
    with torch.no_grad():
        layer.p.fill_(-1.0)
    torch.testing.assert_close(layer(x), GeMean(4, p=SMALLEST_POWER)(x))
