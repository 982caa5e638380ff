from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor
from torchvision.models import resnet50

from gspool.models import create_backbone


@pytest.fixture(scope="module")
def weights() -> dict[str, Tensor]:
    """Random weights under torchvision's names, with statistics away from their start."""
    generator = torch.Generator().manual_seed(0)
    values = {}
    for name, value in resnet50().state_dict().items():
        if name.startswith("fc.") or name.endswith("num_batches_tracked"):
            continue
        if value.ndim == 4:
            values[name] = torch.randn(value.shape, generator=generator) * (2 / value[0].numel()) ** 0.5
        elif name.endswith(("running_var", "weight")):
            values[name] = 0.5 + torch.rand(value.shape, generator=generator)
        else:
            values[name] = 0.1 * torch.randn(value.shape, generator=generator)
    return values


def by_hand(x: Tensor, weights: dict[str, Tensor]) -> Tensor:
    """Keras' ResNet50 in plain float64 functions: padding written out, the stride in the first 1x1."""
    values = {name: value.double() for name, value in weights.items()}

    def norm(name: str, x: Tensor) -> Tensor:
        mean, variance, scale, shift = (
            values[f"{name}.{part}"][:, None, None] for part in ("running_mean", "running_var", "weight", "bias")
        )
        return scale * (x - mean) / torch.sqrt(variance + 1.001e-5) + shift

    def pointwise(name: str, x: Tensor, stride: int = 1) -> Tensor:
        return torch.einsum("dc,bchw->bdhw", values[f"{name}.weight"][:, :, 0, 0], x[:, :, ::stride, ::stride])

    x = F.conv2d(F.pad(x.double(), (3, 3, 3, 3)), values["conv1.weight"], stride=2)
    x = F.pad(norm("bn1", x).clamp(min=0), (1, 1, 1, 1))
    x = x.unfold(2, 3, 2).unfold(3, 3, 2).amax(dim=(-2, -1))
    for stage, blocks in enumerate((3, 4, 6, 3), start=1):
        for index in range(blocks):
            block = f"layer{stage}.{index}"
            stride = 2 if stage > 1 and index == 0 else 1
            y = norm(f"{block}.bn1", pointwise(f"{block}.conv1", x, stride)).clamp(min=0)
            y = F.conv2d(F.pad(y, (1, 1, 1, 1)), values[f"{block}.conv2.weight"])
            y = norm(f"{block}.bn3", pointwise(f"{block}.conv3", norm(f"{block}.bn2", y).clamp(min=0)))
            if index == 0:
                x = norm(f"{block}.downsample.1", pointwise(f"{block}.downsample.0", x, stride))
            x = (x + y).clamp(min=0)
    return x


def test_names_are_torchvisions(weights: dict[str, Tensor]) -> None:
    own = create_backbone("keras/resnet50").state_dict()
    assert {name for name in own if not name.endswith("num_batches_tracked")} == set(weights)


@pytest.mark.parametrize("size", [(64, 64), (65, 97)])
def test_it_computes_keras_arithmetic(size: tuple[int, int], weights: dict[str, Tensor], tmp_path: Path) -> None:
    save_file(weights, tmp_path / "keras.safetensors")
    backbone = create_backbone("keras/resnet50", weights=tmp_path / "keras.safetensors").eval()
    pixels = 100 * torch.randn(1, 3, *size)
    with torch.no_grad():
        features = backbone(pixels)
    expected = by_hand(pixels, weights)
    torch.testing.assert_close(features.double(), expected, rtol=1e-3, atol=1e-4 * float(expected.max()))


def test_the_same_weights_mean_something_else_in_torchvision(weights: dict[str, Tensor], tmp_path: Path) -> None:
    save_file(weights, tmp_path / "keras.safetensors")
    backbone = create_backbone("keras/resnet50", weights=tmp_path / "keras.safetensors").eval()
    stock = resnet50()
    stock.load_state_dict(weights, strict=False)
    stock.eval()
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
