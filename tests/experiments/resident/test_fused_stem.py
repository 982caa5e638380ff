"""The stem in fewer passes is the stem: in values, and in the gradients of what learns."""

from __future__ import annotations

import copy

import pytest
import torch
from torch.nn.functional import conv2d, max_pool2d, relu

from gspool.experiments.resident import fold_frozen_norms
from gspool.experiments.resident.fused_stem import fuse_stem, spread_pixels, spread_weight, stem
from gspool.models.keras_resnet import KerasBottleneck, KerasResNet50

SIDES = [(1, 1), (2, 7), (8, 8), (9, 9), (17, 12), (35, 34)]


def plain_stem(pixels: torch.Tensor, weight: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
    return max_pool2d(relu(conv2d(pixels, weight, shift, stride=2, padding=3)), 3, stride=2, padding=1)


@pytest.mark.parametrize("sides", SIDES)
def test_the_convolution_by_blocks_is_the_convolution(sides: tuple[int, int]) -> None:
    torch.manual_seed(0)
    pixels, weight = torch.randn(2, 3, *sides, dtype=torch.float64), torch.randn(5, 3, 7, 7, dtype=torch.float64)
    spread = spread_pixels(pixels, torch.float64)
    assert spread.shape[1] == 16
    assert spread.is_contiguous(memory_format=torch.channels_last)
    by_blocks = conv2d(spread, spread_weight(weight))
    torch.testing.assert_close(by_blocks, conv2d(pixels, weight, stride=2, padding=3), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("sides", SIDES)
def test_the_fused_stem_is_the_stem_in_values_and_gradients(sides: tuple[int, int]) -> None:
    torch.manual_seed(0)
    given = [torch.randn(shape, dtype=torch.float64) for shape in ((2, 3, *sides), (5, 3, 7, 7), (5,))]
    found = []
    for compute in (stem, plain_stem):
        pixels, weight, shift = (each.clone() for each in given)
        out = compute(pixels.requires_grad_(), weight.requires_grad_(), shift)
        out.square().sum().backward()
        found.append((out.detach(), pixels.grad, weight.grad))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("side", [32, 35])
def test_a_network_with_a_fused_stem_is_the_network_under_autocast_too(side: int) -> None:
    torch.manual_seed(0)
    plain = KerasResNet50().eval()
    fused = copy.deepcopy(plain)
    fold_frozen_norms(plain)
    fold_frozen_norms(fused)
    assert fuse_stem(fused)
    images = 50 * torch.randn(1, 3, side, side).contiguous(memory_format=torch.channels_last)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        ours, theirs = fused(images), plain(images)
    assert ours.dtype == theirs.dtype == torch.bfloat16
    assert float((ours - theirs).norm() / theirs.norm()) < 0.03


def test_only_a_folded_resnet_gets_another_stem() -> None:
    network = KerasResNet50()
    assert not fuse_stem(network)
    assert not fuse_stem(KerasBottleneck(8, 2, stride=1, project=False))
    assert "forward" not in vars(network)


@pytest.mark.gpu
@pytest.mark.parametrize("sides", [(33, 40), (64, 64), (65, 67), (227, 227)])
@pytest.mark.parametrize("channels", [64, 24])
def test_on_a_gpu_the_stem_is_the_stem_in_values_and_gradients(
    sides: tuple[int, int], channels: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    generator = torch.Generator("cuda").manual_seed(0)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, device="cuda")

    pixels = drawn(4, 3, *sides).contiguous(memory_format=torch.channels_last)
    weight, shift = drawn(channels, 3, 7, 7).contiguous(memory_format=torch.channels_last), drawn(channels)
    direction = drawn(4, channels, *(((side + 1) // 2 + 1) // 2 for side in sides))
    found = []
    for compute, dtype in ((stem, torch.float32), (plain_stem, torch.float64)):
        learned = weight.to(dtype, copy=True).requires_grad_()
        out = compute(pixels.to(dtype), learned, shift.to(dtype))
        (out * direction.to(dtype)).sum().backward()
        found.append((out.detach().double(), learned.grad.double()))
    for ours, theirs in zip(*found, strict=True):
        assert float((ours - theirs).norm()) < 1e-4 * float(theirs.norm())


@pytest.mark.gpu
def test_on_a_gpu_equal_maxima_and_zeros_have_the_gradient_of_the_plain_stem() -> None:
    """Numbers of few digits: bfloat16 holds the convolution exactly, and windows are full of ties."""
    generator = torch.Generator("cuda").manual_seed(0)
    pixels = torch.randint(-1, 2, (3, 3, 37, 40), generator=generator, device="cuda").float()
    weight = torch.zeros(16, 3, 7, 7, device="cuda")
    weight[:, :, 3, 3] = torch.randint(-1, 2, (16, 3), generator=generator, device="cuda").float()
    shift = torch.zeros(16, device="cuda")
    direction = torch.randint(-2, 3, (3, 16, 10, 10), generator=generator, device="cuda").float()
    found = []
    for compute, dtype in ((stem, torch.bfloat16), (plain_stem, torch.float64)):
        learned = weight.to(dtype, copy=True).requires_grad_()
        out = compute(pixels.to(dtype), learned, shift.to(dtype))
        (out * direction.to(dtype)).sum().backward()
        found.append((out.detach().double(), learned.grad.double()))
    assert torch.equal(found[0][0], found[1][0])
    # The gradients are sums of whole numbers, rounded once at the end.
    torch.testing.assert_close(found[0][1], found[1][1], rtol=2**-8, atol=0)
