"""Global max pooling."""

from __future__ import annotations

import torch

from gspool.pooling.gmp import GMP


def test_equals_a_loop_over_tokens() -> None:
    x = torch.randn(3, 5, 2, 4)
    out = GMP(5)(x)
    for b in range(3):
        for c in range(5):
            assert out[b, c].item() == max(x[b, c].flatten().tolist())


def test_ties_share_the_gradient() -> None:
    x = torch.tensor([[[2.0], [1.0], [2.0]]], requires_grad=True)
    GMP(1)(x).sum().backward()
    assert x.grad.flatten().tolist() == [0.5, 0.0, 0.5]


def test_all_negative_features_keep_their_maximum_beside_padding() -> None:
    x = torch.tensor([[[-3.0], [-1.0], [0.0]]])
    mask = torch.tensor([[True, True, False]])
    assert GMP(1)(x, mask).item() == -1.0


def test_has_no_weights_because_channels_choose_alone() -> None:
    assert GMP(2).pool(torch.randn(1, 2, 3, 3)).weights is None
