"""CBAM against its formula, written out in loops."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gspool.pooling.cbam import CBAM
from oracle import EXACT


def sigmoid(value):
    return 1.0 / (1.0 + np.exp(-value))


def cbam_in_loops(image, squeeze, excite, kernel):
    """One image [C, H, W]; squeeze [R, C], excite [C, R], kernel [2, K, K]."""
    channels, height, width = image.shape

    def mlp(summary):
        return excite @ np.maximum(squeeze @ summary, 0.0)

    flat = image.reshape(channels, -1)
    gate = sigmoid(mlp(flat.mean(1)) + mlp(flat.max(1)))
    gated = image * gate[:, None, None]
    summaries = [gated.mean(0), gated.max(0)]
    reach = kernel.shape[1] // 2
    total = np.zeros(channels)
    for row in range(height):
        for column in range(width):
            response = 0.0
            for plane, weights in zip(summaries, kernel, strict=True):
                for down in range(-reach, reach + 1):
                    for right in range(-reach, reach + 1):
                        if 0 <= row + down < height and 0 <= column + right < width:
                            response += weights[down + reach, right + reach] * plane[row + down, column + right]
            total += sigmoid(response) * gated[:, row, column]
    return total / (height * width)


@pytest.mark.parametrize(("size", "reduction", "kernel_size"), [((3, 5), 1, 3), ((1, 1), 2, 3), ((4, 7), 3, 5)])
def test_formula(size, reduction, kernel_size):
    torch.manual_seed(0)
    layer = CBAM(6, reduction=reduction, kernel_size=kernel_size).double()
    x = torch.randn(2, 6, *size, dtype=torch.float64)
    weights = [layer.squeeze.weight, layer.excite.weight, layer.locate.weight[0]]
    expected = [cbam_in_loops(image.numpy(), *(w.detach().numpy() for w in weights)) for image in x]
    torch.testing.assert_close(layer(x), torch.tensor(np.stack(expected)), **EXACT)


def test_without_weights_both_gates_are_half_open():
    layer = CBAM(4).double()
    for parameter in layer.parameters():
        torch.nn.init.zeros_(parameter)
    x = torch.randn(2, 4, 3, 5, dtype=torch.float64)
    torch.testing.assert_close(layer(x), x.mean((2, 3)) / 4, **EXACT)


def test_places_matter():
    """The spatial gate sees neighbours: the same tokens in another order are another image."""
    torch.manual_seed(0)
    layer = CBAM(4)
    x = torch.randn(1, 4, 3, 5)
    shuffled = x.flatten(2)[:, :, torch.randperm(15)].view_as(x)
    assert not torch.allclose(layer(x), layer(shuffled))


def test_padding_is_not_the_maximum_of_features_below_zero():
    torch.manual_seed(0)
    layer = CBAM(4).double()
    x = -1 - torch.rand(2, 4, 3, 5, dtype=torch.float64)
    mask = torch.zeros(2, 3, 5, dtype=torch.bool)
    mask[:, 1:, 2:4] = True
    torch.testing.assert_close(layer(x, mask), layer(x[:, :, 1:, 2:4]), **EXACT)


def test_paper_settings():
    layer = CBAM(16)
    assert layer.squeeze.weight.shape == layer.excite.weight.shape == (16, 16)
    assert layer.locate.weight.shape == (1, 2, 3, 3)
    assert [name for name, _ in layer.named_parameters() if "bias" in name] == []
    assert layer.embedding == "after"


def test_there_are_no_weights_because_the_gates_differ_by_channel():
    out = CBAM(4).pool(torch.randn(2, 4, 3, 3))
    assert out.weights is None
    assert out.attributes is None
