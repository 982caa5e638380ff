"""WELDON pooling."""

from __future__ import annotations

import pytest
import torch

from gspool.pooling.gmp import GMP
from gspool.pooling.weldon import WELDON


@pytest.mark.parametrize(("k", "k_min"), [(3, 3), (1, 4), (2, 0)])
def test_equals_sorting_each_channel(k: int, k_min: int) -> None:
    x = torch.randn(2, 3, 3, 4, dtype=torch.float64)
    out = WELDON(3, k=k, k_min=k_min)(x)
    for b in range(2):
        for c in range(3):
            values = sorted(x[b, c].flatten().tolist())
            expected = sum(values[-k:]) + sum(values[:k_min])
            torch.testing.assert_close(out[b, c].item(), expected)


def test_all_tokens_counted_is_twice_the_sum() -> None:
    x = torch.randn(2, 4, 3, 5, dtype=torch.float64)
    torch.testing.assert_close(WELDON(4, k=15)(x), 2 * x.sum((2, 3)))


def test_one_and_none_is_max_pooling() -> None:
    x = torch.randn(2, 4, 3, 5)
    torch.testing.assert_close(WELDON(4, k=1, k_min=0)(x), GMP(4)(x))


def test_ties_are_counted_k_times_and_no_more() -> None:
    assert WELDON(1, k=3)(torch.ones(1, 1, 5, 5)).item() == 6.0


def test_three_and_three_unless_told_otherwise() -> None:
    assert (WELDON(4).k, WELDON(4).k_min) == (3, 3)


@pytest.mark.parametrize("shape", [(1, 4, 1, 1), (1, 4, 1, 2), (1, 2, 4)])
def test_maps_too_small_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="needs 3 tokens, got an image with"):
        WELDON(4)(torch.randn(shape))


def test_masks_that_leave_too_few_are_refused() -> None:
    mask = torch.tensor([[True] * 5, [True, True, False, False, False]])
    with pytest.raises(ValueError, match="got an image with 2"):
        WELDON(4)(torch.randn(2, 5, 4), mask)
