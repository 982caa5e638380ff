"""A folded batch norm, or a fused ReLU, changes neither what a network computes nor what it learns."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from gspool.experiments.resident import fold_frozen_norms, fuse_activations
from gspool.experiments.resident.fused_activations import ConvolutionReLU
from gspool.models.keras_resnet import KerasResNet50


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


@pytest.mark.parametrize("fused", [False, True])
def test_the_folded_resnet_is_the_resnet_in_values_and_gradients(fused: bool) -> None:
    torch.manual_seed(0)
    plain = with_statistics(KerasResNet50())
    folded = copy.deepcopy(plain)
    assert fold_frozen_norms(folded) == 53
    if fused:
        assert fuse_activations(folded) == 16
    images = 50 * torch.randn(1, 3, 65, 65, dtype=torch.float64)
    weight = torch.randn(1, 2048, 3, 3, dtype=torch.float64)
    for network in (plain, folded):
        (network(images) * weight).sum().backward()
    torch.testing.assert_close(folded(images), plain(images), rtol=1e-9, atol=1e-9)
    for (name, ours), (_, theirs) in zip(folded.named_parameters(), plain.named_parameters(), strict=True):
        assert (ours.grad is None) == (theirs.grad is None), name
        if theirs.grad is not None:
            scale = float(theirs.grad.abs().max())
            torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-8, atol=1e-9 * scale, msg=name)


@pytest.mark.gpu
def test_fused_on_a_gpu_it_is_as_near_to_the_resnet_as_bf16_allows() -> None:
    torch.manual_seed(0)
    exact = with_statistics(KerasResNet50()).cuda()
    images = 50 * torch.randn(4, 3, 65, 65, device="cuda")
    weight = torch.randn(4, 2048, 3, 3, device="cuda")
    rounded, fused = (copy.deepcopy(exact).float().to(memory_format=torch.channels_last) for _ in range(2))
    fold_frozen_norms(fused)
    fuse_activations(fused)
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
        return ConvolutionReLU.apply(*given[:2], shift, given[2], (2, 2), (1, 1))

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
