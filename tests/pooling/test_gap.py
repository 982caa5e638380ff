"""Global average pooling."""

from __future__ import annotations

import numpy as np
import torch

from gspool.pooling.gap import GAP


def test_equals_a_loop_over_tokens() -> None:
    x = torch.randn(3, 5, 2, 4, dtype=torch.float64)
    expected = np.zeros((3, 5))
    for b in range(3):
        for row in range(2):
            for column in range(4):
                expected[b] += x[b, :, row, column].numpy() / 8
    torch.testing.assert_close(GAP(5)(x), torch.from_numpy(expected))


def test_weights_are_uniform_over_the_real_tokens_and_rebuild_the_vector() -> None:
    x = torch.randn(2, 4, 3, dtype=torch.float64)
    mask = torch.tensor([[True, True, False, True], [False, True, False, False]])
    out = GAP(3).pool(x, mask)
    third = 1 / 3
    torch.testing.assert_close(out.weights, torch.tensor([[third, third, 0, third], [0, 1, 0, 0]], dtype=torch.float64))
    torch.testing.assert_close(out.pooled, torch.einsum("bn,bnc->bc", out.weights, x))


def test_half_precision_sums_do_not_saturate() -> None:
    # Summed in float16, 4096 tokens of 100 would pass its largest number.
    x = torch.full((1, 4096, 2), 100.0, dtype=torch.float16)
    mask = torch.ones(1, 4096, dtype=torch.bool)
    assert GAP(2)(x).tolist() == [[100.0, 100.0]]
    assert GAP(2)(x, mask).tolist() == [[100.0, 100.0]]
