"""A folded batch norm changes neither what a network computes nor what it learns."""

from __future__ import annotations

import copy

import torch
from torch import nn

from gspool.experiments.resident import fold_frozen_norms
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


def test_the_folded_resnet_is_the_resnet_in_values_and_gradients() -> None:
    torch.manual_seed(0)
    plain = with_statistics(KerasResNet50())
    folded = copy.deepcopy(plain)
    assert fold_frozen_norms(folded) == 53
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
