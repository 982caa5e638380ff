"""The arithmetic of Keras is tested where its weights are converted: test_keras_weights.py."""

from __future__ import annotations

import torch
from torchvision.models import resnet50

from gspool.models import create_backbone


def test_its_weights_fit_torchvision_and_mean_something_else_there() -> None:
    torch.manual_seed(0)
    backbone, stock = create_backbone("keras/resnet50").eval(), resnet50().eval()
    told = stock.load_state_dict(backbone.state_dict(), strict=False)
    assert (set(told.missing_keys), told.unexpected_keys) == ({"fc.weight", "fc.bias"}, [])
    trunk = torch.nn.Sequential(*list(stock.children())[:-2])
    pixels = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        ours, theirs = backbone(pixels), trunk(pixels)
    assert ours.shape == theirs.shape
    assert (ours - theirs).norm() > 0.1 * ours.norm()


def test_map_and_pixels() -> None:
    backbone = create_backbone("keras/resnet50").eval()
    with torch.no_grad():
        assert backbone(torch.zeros(1, 3, 227, 227)).shape == (1, 2048, 8, 8)
    pixels = backbone.pixels
    assert (pixels.channel_order, pixels.range, pixels.crop, pixels.resize) == ("BGR", "0-255", (227, 227), 256)
    assert (pixels.mean, pixels.std) == ((103.939, 116.779, 123.68), (1.0, 1.0, 1.0))
