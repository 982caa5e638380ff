"""The sum of average and maximum."""

from __future__ import annotations

import torch

from gspool.pooling.gap import GAP
from gspool.pooling.gap_gmp import GAPGMP
from gspool.pooling.gmp import GMP


def test_is_the_sum_of_its_parts_with_and_without_mask() -> None:
    x = torch.randn(2, 6, 3, 4, dtype=torch.float64)
    mask = torch.rand(2, 3, 4) > 0.4
    mask[:, 0, 0] = True
    for m in (None, mask):
        torch.testing.assert_close(GAPGMP(6)(x, m), GAP(6)(x, m) + GMP(6)(x, m))


def test_constant_features_count_twice() -> None:
    assert GAPGMP(2)(torch.full((1, 2, 3, 3), 1.5)).tolist() == [[3.0, 3.0]]
