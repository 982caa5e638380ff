"""T-SMK pooling."""

from __future__ import annotations

import pytest
import torch

from gspool.pooling.gap import GAP
from gspool.pooling.tsmk import TSMK


def plain_tsmk(image: torch.Tensor, layer: TSMK, lengths: torch.Tensor | None = None) -> torch.Tensor:
    """One image [C, H, W], place by place: mean of |f_j| (A s_j + b), s the average of the places around j."""
    _, height, width = image.shape
    total = torch.zeros(layer.out_dim, dtype=image.dtype)
    for row in range(height):
        for column in range(width):
            around = [
                image[:, r, c]
                for r in range(row - 1, row + 2)
                for c in range(column - 1, column + 2)
                if 0 <= r < height and 0 <= c < width
            ]
            smoothed = sum(around) / len(around)
            length = image[:, row, column].square().sum().sqrt() if lengths is None else lengths[row, column]
            embedded = smoothed if layer.embed is None else layer.embed.weight @ smoothed + layer.embed.bias
            total = total + length * embedded
    return total / (height * width)


@pytest.mark.parametrize("out_dim", [None, 3])
@pytest.mark.parametrize("size", [(1, 1), (1, 7), (3, 5)])
def test_equals_the_formula_written_plainly(out_dim: int | None, size: tuple[int, int]) -> None:
    layer = TSMK(4, out_dim).double()
    if layer.embed is not None:
        torch.nn.init.normal_(layer.embed.bias)
    x = torch.randn(2, 4, *size, dtype=torch.float64)
    torch.testing.assert_close(layer(x), torch.stack([plain_tsmk(image, layer) for image in x]))


def test_no_gradient_flows_through_the_lengths() -> None:
    layer = TSMK(4, 3).double()
    x = torch.randn(1, 4, 3, 4, dtype=torch.float64, requires_grad=True)
    lengths = x.detach()[0].square().sum(0).sqrt()
    (ours,) = torch.autograd.grad(layer(x).square().sum(), x)
    (frozen,) = torch.autograd.grad(plain_tsmk(x[0], layer, lengths).square().sum(), x)
    (flowing,) = torch.autograd.grad(plain_tsmk(x[0], layer).square().sum(), x)
    torch.testing.assert_close(ours, frozen)
    assert (ours - flowing).abs().max() > 0.1 * ours.abs().max()


def test_bias_and_weight_have_the_gradient_of_the_plain_formula() -> None:
    layer = TSMK(4, 3).double()
    x = torch.randn(1, 4, 3, 4, dtype=torch.float64)
    parameters = [*layer.parameters()]
    ours = torch.autograd.grad(layer(x).square().sum(), parameters)
    plain = torch.autograd.grad(plain_tsmk(x[0], layer).square().sum(), parameters)
    torch.testing.assert_close(ours, plain)


def test_tokens_of_one_length_and_no_smoothing_are_average_pooling() -> None:
    x = torch.nn.functional.normalize(torch.randn(2, 6, 4, 4, dtype=torch.float64), dim=1)
    torch.testing.assert_close(TSMK(6, kernel_size=1)(x), GAP(6)(x))


def test_weights_follow_the_length_of_features() -> None:
    x = torch.tensor([[[[3.0, 0.0, 0.0]], [[4.0, 0.0, 15.0]]]])
    torch.testing.assert_close(TSMK(2).pool(x).weights, torch.tensor([[0.25, 0.0, 0.75]]))


def test_an_image_of_zeros_has_uniform_weights() -> None:
    out = TSMK(2).pool(torch.zeros(1, 2, 2, 2))
    assert out.weights.tolist() == [[0.25] * 4]
    assert out.pooled.tolist() == [[0.0, 0.0]]
