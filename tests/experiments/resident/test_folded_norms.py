"""A folded batch norm, or a fused ReLU, changes neither what a network computes nor what it learns."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from gspool.experiments.resident import fold_frozen_norms, fuse_activations
from gspool.experiments.resident.fork import Fork
from gspool.experiments.resident.fused_activations import ConvolutionReLU
from gspool.experiments.resident.fused_stem import fuse_stem
from gspool.models.keras_resnet import KerasBottleneck, KerasResNet50


def with_statistics(network: nn.Module) -> nn.Module:
    """Give batch norm the look of a trained network."""
    generator = torch.Generator().manual_seed(0)
    for part in network.modules():
        if isinstance(part, nn.BatchNorm2d):
            for tensor, low in (
                (part.weight, 0.5),
                (part.running_var, 0.5),
                (part.bias, -0.2),
                (part.running_mean, -0.2),
            ):
                tensor.data = low + torch.rand(tensor.shape, generator=generator) * 0.6
            part.weight.requires_grad_(False)
            part.bias.requires_grad_(False)
    return network.double().eval()


@pytest.mark.parametrize("parts", ["norms", "norms, activations", "norms, stem", "norms, activations, stem"])
# The second keeps an odd number of pixels out of every second one, at every stage.
@pytest.mark.parametrize("side", [65, 54])
def test_the_folded_resnet_is_the_resnet_in_values_and_gradients(parts: str, side: int) -> None:
    torch.manual_seed(0)
    plain = with_statistics(KerasResNet50())
    folded = copy.deepcopy(plain)
    assert fold_frozen_norms(folded) == 53
    if "activations" in parts:
        assert fuse_activations(folded) == 16
    if "stem" in parts:
        assert fuse_stem(folded)
    agree(folded, plain, 50 * torch.randn(1, 3, side, side, dtype=torch.float64))


def agree(ours: nn.Module, theirs: nn.Module, maps: torch.Tensor) -> None:
    """Compare what two networks compute, and the gradients of their input and of all parameters."""
    inputs = [maps.clone().requires_grad_() for _ in range(2)]
    outputs = [network(each) for network, each in zip((ours, theirs), inputs, strict=True)]
    weight = torch.randn(outputs[0].shape, dtype=maps.dtype)
    for out in outputs:
        (out * weight).sum().backward()
    torch.testing.assert_close(*outputs, rtol=1e-9, atol=1e-9)
    pairs = zip(ours.named_parameters(), theirs.named_parameters(), strict=True)
    for name, mine, other in [("input", *inputs), *((name, mine, other) for (name, mine), (_, other) in pairs)]:
        assert (mine.grad is None) == (other.grad is None), name
        if other.grad is not None:
            scale = float(other.grad.abs().max())
            torch.testing.assert_close(mine.grad, other.grad, rtol=1e-8, atol=1e-9 * scale, msg=name)


@pytest.mark.parametrize(("stride", "project"), [(1, False), (1, True), (2, True)])
@pytest.mark.parametrize("side", [5, 6])
def test_a_lone_block_is_right_for_any_input(stride: int, project: bool, side: int) -> None:
    """What it reads need not come from a ReLU: where it is negative, its gradient is not zero."""
    torch.manual_seed(0)
    plain = with_statistics(KerasBottleneck(8, 2, stride, project))
    fused = copy.deepcopy(plain)
    assert fold_frozen_norms(fused) == 3 + project
    assert fuse_activations(fused) == 1
    maps = torch.randn(2, 8, side, side, dtype=torch.float64)
    agree(fused, plain, maps)
    agree(fused, plain, maps.to(memory_format=torch.channels_last))


def test_a_block_whose_shortcut_was_not_folded_is_left_alone() -> None:
    block = with_statistics(KerasBottleneck(8, 2, 2, True))
    fold_frozen_norms(block)
    del block.downsample[0].forward
    assert fuse_activations(block) == 0


@pytest.mark.parametrize("frozen", ["stem", "stem and layer1", "all"])
def test_what_is_frozen_in_the_fused_resnet_keeps_nothing_and_the_rest_learns(frozen: str) -> None:
    torch.manual_seed(0)
    plain = with_statistics(KerasResNet50())
    plain.requires_grad_(frozen != "all")
    for part in (plain.conv1, plain.bn1, *([plain.layer1] if "layer1" in frozen else [])):
        part.requires_grad_(False)
    for part in plain.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.requires_grad_(False)
    fused = copy.deepcopy(plain)
    fold_frozen_norms(fused)
    fuse_activations(fused)
    fuse_stem(fused)
    images = 50 * torch.randn(1, 3, 33, 33, dtype=torch.float64)
    assert fused(images).requires_grad == (frozen != "all")
    with torch.no_grad():
        assert fused(images).grad_fn is None
    read = []
    with torch.autograd.graph.saved_tensors_hooks(lambda kept: read.append(kept.shape) or kept, lambda kept: kept):
        first = fused.layer1(fused.get_submodule("layer1")[0].conv1.weight.new_ones(1, 64, 9, 9))
    assert bool(read) == first.requires_grad == (frozen == "stem")
    if frozen != "all":
        for network in (fused, plain):
            network(images).square().sum().backward()
        for (name, ours), (_, theirs) in zip(fused.named_parameters(), plain.named_parameters(), strict=True):
            assert (ours.grad is None) == (theirs.grad is None), name
            if theirs.grad is not None:
                scale = float(theirs.grad.abs().max())
                torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-8, atol=1e-9 * scale, msg=name)


@pytest.mark.parametrize("step", [1, 2])
def test_a_fork_adds_its_gradients_and_stops_them_where_the_map_is_zero(step: int) -> None:
    torch.manual_seed(0)
    before = torch.randn(2, 3, 5, 7, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(2, 2, 3, -(-5 // step), -(-7 // step), dtype=torch.float64)
    maps = before.detach().relu().requires_grad_()
    sum((each * weight).sum() for each, weight in zip(Fork.apply(maps, step, True), weights, strict=True)).backward()
    (before.relu()[:, :, ::step, ::step] * weights.sum(0)).sum().backward()
    torch.testing.assert_close(maps.grad, before.grad)


@pytest.mark.gpu
def test_fused_on_a_gpu_it_is_as_near_to_the_resnet_as_bf16_allows() -> None:
    torch.manual_seed(0)
    exact = with_statistics(KerasResNet50()).cuda()
    images = 50 * torch.randn(4, 3, 65, 65, device="cuda")
    weight = torch.randn(4, 2048, 3, 3, device="cuda")
    rounded, fused = (copy.deepcopy(exact).float().to(memory_format=torch.channels_last) for _ in range(2))
    fold_frozen_norms(fused)
    fuse_activations(fused)
    assert fuse_stem(fused)
    maps, steps = [], []
    for network, dtype in ((exact, torch.float64), (rounded, torch.float32), (fused, torch.float32)):
        with torch.autocast("cuda", torch.bfloat16, enabled=dtype == torch.float32):
            out = network(images.to(dtype).contiguous(memory_format=torch.channels_last)).double()
        (out * weight).mean().backward()
        maps.append(out.detach())
        steps.append([each.grad for each in network.parameters() if each.requires_grad])
    assert far(maps[2], maps[0]) < 2 * far(maps[1], maps[0]) < 0.1
    for truth, plain, ours in zip(*steps, strict=True):
        assert far(ours, truth) < 2 * far(plain, truth)


def far(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    return float((ours - theirs).norm() / theirs.norm())


def test_a_shortcut_has_its_gradient_and_what_is_frozen_has_none() -> None:
    torch.manual_seed(0)
    maps, weight = torch.randn(2, 3, 6, 6, dtype=torch.float64), torch.randn(4, 3, 3, 3, dtype=torch.float64)
    shift, shortcut = torch.randn(4, dtype=torch.float64), torch.randn(2, 4, 3, 3, dtype=torch.float64)
    learned = [each.requires_grad_() for each in (maps, weight, shortcut)]

    def fused(*given: torch.Tensor) -> torch.Tensor:
        return ConvolutionReLU.apply(*given[:2], shift, given[2], (2, 2), (1, 1), False)

    assert torch.autograd.gradcheck(fused, learned)
    maps.requires_grad_(False)
    fused(maps, weight, shortcut).sum().backward()
    assert maps.grad is None
    assert weight.grad is not None


def test_names_and_weights_of_the_state_dict_stay() -> None:
    plain = with_statistics(KerasResNet50())
    folded = copy.deepcopy(plain)
    fold_frozen_norms(folded)
    ours, theirs = folded.state_dict(), plain.state_dict()
    assert list(ours) == list(theirs)
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_a_convolution_with_a_bias_is_left_alone() -> None:
    network = with_statistics(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)))
    images = torch.randn(2, 3, 8, 8, dtype=torch.float64)
    before = network(images)
    assert fold_frozen_norms(network) == 0
    assert torch.equal(network(images), before)
