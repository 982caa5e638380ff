"""Every public function refuses wrong input with a ValueError that says what to do."""

import pytest
import torch

from gspool.functional import distance, greedy_centers, gsp_pool, hard_selection, partial_transport, ridge_regression

COST, X, W = torch.rand(2, 3, 5), torch.rand(2, 5, 4), torch.rand(3, 4)
MASK = torch.ones(2, 5, dtype=torch.bool)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([[1.0]], 0.3, 5.0), "torch.Tensor"),
        ((torch.rand(5), 0.3, 5.0), r"\[..., M, N\]"),
        ((torch.rand(2, 0, 5), 0.3, 5.0), "at least one prototype"),
        ((torch.ones(3, 5, dtype=torch.long), 0.3, 5.0), r"cost.float\(\)"),
        ((COST, 0.0, 5.0), r"\(0, 1\], got 0.0"),
        ((COST, 1.5, 5.0), r"\(0, 1\], got 1.5"),
        ((COST, float("nan"), 5.0), r"\(0, 1\], got nan"),
        ((COST, "0.3", 5.0), r"\(0, 1\]"),
        ((COST, torch.tensor([0.3, 1.2]), 5.0), r"got values from 0.3 to 1.2"),
        ((COST, torch.tensor([0.3, 0.3, 0.3]), 5.0), "one number an image"),
        ((COST, torch.tensor([1, 1]), 5.0), "floating point"),
        ((COST, 0.3, -1.0), "finite number >= 0, got -1.0"),
        ((COST, 0.3, float("inf")), "got inf"),
        ((COST, 0.3, torch.tensor([5.0, 5.0])), "scalar"),
        ((COST, 0.3, torch.tensor(-5.0)), "got -5"),
        ((COST, 0.3, 5.0, torch.ones(2, 5)), r"mask.bool\(\)"),
        ((COST, 0.3, 5.0, torch.ones(2, 4, dtype=torch.bool)), r"shape \(2, 5\)"),
        ((COST, 0.3, 5.0, torch.zeros(2, 5, dtype=torch.bool)), "2 image"),
        ((COST, 0.3, 5.0, torch.ones(2, 5, dtype=torch.bool, device="meta")), "mask.to"),
    ],
)
def test_partial_transport(arguments, message):
    with pytest.raises(ValueError, match=message):
        partial_transport(*arguments)


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((torch.rand(2, 4, 3, 3), W, 0.3, 5.0), {}, r"flatten\(2\)"),
        ((torch.rand(2, 0, 4), W, 0.3, 5.0), {}, "at least one token"),
        ((X, torch.rand(3, 5), 0.3, 5.0), {}, "D = 4"),
        ((X, torch.rand(0, 4), 0.3, 5.0), {}, "at least one row"),
        ((X, W.to("meta"), 0.3, 5.0), {}, "one device"),
        ((X.long(), W, 0.3, 5.0), {}, r"tokens.float\(\)"),
        ((X, W, 0.3, 5.0), {"backend": "cuda"}, "backend must be one of .*cuda"),
        ((X, W, 0.3, 5.0), {"precision": "fp8"}, "precision must be one of .*fp8"),
        ((X, W, 0.3, 5.0), {"role": "middle"}, "role must be one of"),
        ((X, W, 1.0, 5.0), {"role": "background"}, "nothing is left"),
        ((X, W, 0.3, 5.0), {"mask": MASK[:, :3]}, r"shape \(2, 5\)"),
    ],
)
def test_gsp_pool(arguments, options, message):
    with pytest.raises(ValueError, match=message):
        gsp_pool(*arguments, **options)


def test_the_others():
    with pytest.raises(ValueError, match="D = 4"):
        distance(torch.rand(3, 5), X)
    with pytest.raises(ValueError, match=r"\(0, 1\]"):
        hard_selection(COST, 2.0)
    with pytest.raises(ValueError, match="ridge must be positive"):
        ridge_regression(torch.rand(3, 2), torch.rand(3, 2), ridge=0.0)
    with pytest.raises(ValueError, match="one row a sample"):
        ridge_regression(torch.rand(3, 2), torch.rand(4, 2), ridge=1.0)
    with pytest.raises(ValueError, match="collect more features"):
        greedy_centers(torch.rand(3, 2), count=4)
    with pytest.raises(ValueError, match="NaN or infinity"):
        greedy_centers(torch.tensor([[float("nan")], [1.0]]), count=1)
