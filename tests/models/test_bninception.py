from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor

from gspool.models import create_backbone
from gspool.models.bninception import BNInception

# Kernel, in, out of every convolution of the published network, in its order; strides and pools stand in `by_hand`.
CONVOLUTIONS = """
conv1_7x7_s2 7 3 64 | conv2_3x3_reduce 1 64 64 | conv2_3x3 3 64 192
3a_1x1 1 192 64 | 3a_3x3_reduce 1 192 64 | 3a_3x3 3 64 64 | 3a_double_3x3_reduce 1 192 64
3a_double_3x3_1 3 64 96 | 3a_double_3x3_2 3 96 96 | 3a_pool_proj 1 192 32
3b_1x1 1 256 64 | 3b_3x3_reduce 1 256 64 | 3b_3x3 3 64 96 | 3b_double_3x3_reduce 1 256 64
3b_double_3x3_1 3 64 96 | 3b_double_3x3_2 3 96 96 | 3b_pool_proj 1 256 64
3c_3x3_reduce 1 320 128 | 3c_3x3 3 128 160 | 3c_double_3x3_reduce 1 320 64 | 3c_double_3x3_1 3 64 96
3c_double_3x3_2 3 96 96
4a_1x1 1 576 224 | 4a_3x3_reduce 1 576 64 | 4a_3x3 3 64 96 | 4a_double_3x3_reduce 1 576 96
4a_double_3x3_1 3 96 128 | 4a_double_3x3_2 3 128 128 | 4a_pool_proj 1 576 128
4b_1x1 1 576 192 | 4b_3x3_reduce 1 576 96 | 4b_3x3 3 96 128 | 4b_double_3x3_reduce 1 576 96
4b_double_3x3_1 3 96 128 | 4b_double_3x3_2 3 128 128 | 4b_pool_proj 1 576 128
4c_1x1 1 576 160 | 4c_3x3_reduce 1 576 128 | 4c_3x3 3 128 160 | 4c_double_3x3_reduce 1 576 128
4c_double_3x3_1 3 128 160 | 4c_double_3x3_2 3 160 160 | 4c_pool_proj 1 576 128
4d_1x1 1 608 96 | 4d_3x3_reduce 1 608 128 | 4d_3x3 3 128 192 | 4d_double_3x3_reduce 1 608 160
4d_double_3x3_1 3 160 192 | 4d_double_3x3_2 3 192 192 | 4d_pool_proj 1 608 128
4e_3x3_reduce 1 608 128 | 4e_3x3 3 128 192 | 4e_double_3x3_reduce 1 608 192 | 4e_double_3x3_1 3 192 256
4e_double_3x3_2 3 256 256
5a_1x1 1 1056 352 | 5a_3x3_reduce 1 1056 192 | 5a_3x3 3 192 320 | 5a_double_3x3_reduce 1 1056 160
5a_double_3x3_1 3 160 224 | 5a_double_3x3_2 3 224 224 | 5a_pool_proj 1 1056 128
5b_1x1 1 1024 352 | 5b_3x3_reduce 1 1024 192 | 5b_3x3 3 192 320 | 5b_double_3x3_reduce 1 1024 192
5b_double_3x3_1 3 192 224 | 5b_double_3x3_2 3 224 224 | 5b_pool_proj 1 1024 128
"""


def published_shapes() -> dict[str, tuple[int, ...]]:
    """Names and shapes of the Caffe-converted file, without its classifier."""
    shapes: dict[str, tuple[int, ...]] = {}
    for entry in CONVOLUTIONS.replace("\n", "|").split("|"):
        if not entry.strip():
            continue
        name, kernel, channels, out = entry.split()
        name = name if name.startswith("conv") else f"inception_{name}"
        shapes[f"{name}.weight"] = (int(out), int(channels), int(kernel), int(kernel))
        shapes[f"{name}.bias"] = (int(out),)
        for part in ("weight", "bias", "running_mean", "running_var"):
            shapes[f"{name}_bn.{part}"] = (int(out),)
    return shapes


def random_weights() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    weights = {}
    for name, shape in published_shapes().items():
        value = torch.randn(shape, generator=generator)
        if len(shape) == 4:
            weights[name] = value * (2 / (shape[1] * shape[2] * shape[3])) ** 0.5
        elif name.endswith(("running_var", "_bn.weight")):
            weights[name] = 0.5 + value.abs()
        else:
            weights[name] = 0.1 * value
    return weights


def by_hand(x: Tensor, weights: dict[str, Tensor]) -> Tensor:
    """The Caffe network in plain functions, for maps that stay even: its pools round up and have no padding."""

    def unit(name: str, x: Tensor, stride: int = 1) -> Tensor:
        kernel = weights[f"{name}.weight"]
        x = F.conv2d(x, kernel, weights[f"{name}.bias"], stride, padding=kernel.shape[2] // 2)
        mean, variance = weights[f"{name}_bn.running_mean"], weights[f"{name}_bn.running_var"]
        x = (x - mean[:, None, None]) / torch.sqrt(variance[:, None, None] + 1e-5)
        x = x * weights[f"{name}_bn.weight"][:, None, None] + weights[f"{name}_bn.bias"][:, None, None]
        return x.clamp(min=0)

    def down(x: Tensor) -> Tensor:
        return F.max_pool2d(x, 3, 2, ceil_mode=True)

    x = down(unit("conv1_7x7_s2", x, 2))
    x = down(unit("conv2_3x3", unit("conv2_3x3_reduce", x)))
    for name in ("3a", "3b", "3c", "4a", "4b", "4c", "4d", "4e", "5a", "5b"):
        block, halves = f"inception_{name}", name in ("3c", "4e")
        stride = 2 if halves else 1
        parts = [] if halves else [unit(f"{block}_1x1", x)]
        parts.append(unit(f"{block}_3x3", unit(f"{block}_3x3_reduce", x), stride))
        double = unit(f"{block}_double_3x3_1", unit(f"{block}_double_3x3_reduce", x))
        parts.append(unit(f"{block}_double_3x3_2", double, stride))
        if halves:
            parts.append(down(x))
        elif name == "5b":
            parts.append(unit(f"{block}_pool_proj", F.max_pool2d(x, 3, 1, padding=1)))
        else:
            around = F.pad(x, (1, 1, 1, 1)).unfold(2, 3, 1).unfold(3, 3, 1)
            parts.append(unit(f"{block}_pool_proj", around.mean(dim=(-2, -1))))
        x = torch.cat(parts, dim=1)
    return x


def test_names_and_shapes_are_those_of_the_published_weights() -> None:
    own = {name: tuple(value.shape) for name, value in BNInception().state_dict().items()}
    assert {
        name: shape for name, shape in own.items() if not name.endswith("num_batches_tracked")
    } == published_shapes()


@pytest.mark.parametrize("form", ["flat", "rows", "safetensors", "wrapped"])
def test_published_files_load_and_compute_the_caffe_network(form: str, tmp_path: Path) -> None:
    weights = random_weights()
    file = {**weights, "last_linear.weight": torch.zeros(1000, 1024), "last_linear.bias": torch.zeros(1000)}
    if form == "rows":  # one of the published conversions keeps batch norm as [1, C]
        file = {name: value[None] if "_bn." in name else value for name, value in file.items()}
    path = tmp_path / ("bn.safetensors" if form == "safetensors" else "bn.pth")
    if form == "safetensors":
        save_file(file, path)
    else:
        torch.save({"state_dict": file} if form == "wrapped" else file, path)
    backbone = create_backbone("bninception", weights=path).double().eval()
    pixels = torch.randn(1, 3, 64, 96, dtype=torch.float64)
    expected = by_hand(pixels, {name: value.double() for name, value in weights.items()})
    with torch.no_grad():
        torch.testing.assert_close(backbone(pixels), expected, rtol=1e-8, atol=1e-8)


def test_weights_that_do_not_fit_are_refused_by_name(tmp_path: Path) -> None:
    weights = random_weights()
    weights["inception_6a_1x1.weight"] = weights.pop("inception_3a_1x1.weight")
    weights["conv1_7x7_s2.bias"] = torch.zeros(65)
    save_file(weights, tmp_path / "bn.safetensors")
    with pytest.raises(ValueError) as refusal:
        BNInception(tmp_path / "bn.safetensors")
    for words in ("missing in the file: inception_3a_1x1.weight", "unknown to the model: inception_6a_1x1.weight"):
        assert words in str(refusal.value)
    assert "conv1_7x7_s2.bias (file (65,), model (64,))" in str(refusal.value)
