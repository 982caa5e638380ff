"""A small network of folded convolutions, and steps of it: as they are, and with weights rounded together."""

from __future__ import annotations

import copy

import torch
from torch import nn

from gspool.experiments.resident import fold_frozen_norms
from gspool.experiments.resident.rounded_weights import RoundedWeights

RATE = 0.05


def network() -> nn.Sequential:
    """Three convolutions with frozen batch norm, one of them frozen itself, and a layer that is no convolution."""
    torch.manual_seed(0)
    built = nn.Sequential(
        nn.Conv2d(3, 5, 3, bias=False),
        nn.BatchNorm2d(5),
        nn.Conv2d(5, 7, 1, bias=False),
        nn.BatchNorm2d(7),
        nn.Conv2d(7, 70, 3, bias=False),
        nn.BatchNorm2d(70),
        nn.Flatten(),
        nn.Linear(70 * 9, 4),
    ).eval()
    for norm in built.modules():
        if isinstance(norm, nn.BatchNorm2d):
            norm.running_var.uniform_(0.5, 2.0)
            norm.running_mean.normal_()
            norm.weight.requires_grad_(False).uniform_(0.5, 2.0)
            norm.bias.requires_grad_(False)
    return built.to(memory_format=torch.channels_last)


def optimiser_of(model: nn.Module, kind: type[torch.optim.Optimizer]) -> torch.optim.Optimizer:
    return kind(model.parameters(), lr=RATE, betas=(0.9, 0.99), eps=1e-7, weight_decay=0.1)


def learned(
    kind: type[torch.optim.Optimizer], clip: float, *, together: bool, launches: bool = False, steps: int = 4
) -> dict[str, torch.Tensor]:
    """Give the weights, and what the optimiser remembers, after some steps; the first is made as it is."""
    model = copy.deepcopy(network())
    fold_frozen_norms(model)
    model[2].weight.requires_grad_(False)
    optimiser = optimiser_of(model, kind)
    images = torch.randn(4, 3, 7, 7, generator=torch.Generator().manual_seed(1))
    rounded = None
    for step in range(steps):
        if together and step == 1:
            rounded = RoundedWeights(model, optimiser, torch.float32)
            if launches:
                from gspool.experiments.resident.rounded_launches import Launches

                rounded._launches = Launches(rounded)
        if rounded is None:
            loss = model(images).square().sum()
        else:
            with rounded.used():
                loss = model(images).square().sum()
            rounded.forget()
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        if rounded is not None:
            rounded.descend(clip)
        else:
            if clip:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimiser.step()
    remembered = {
        f"{number} {name}": value
        for number, state in enumerate(optimiser.state.values())
        for name, value in state.items()
    }
    return {**model.state_dict(), **remembered}


def assert_alike(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> None:
    """Compare tensor by tensor, each beside its largest value: Adam divides small gradients by themselves."""
    assert list(ours) == list(theirs)
    for name, value in theirs.items():
        assert float((ours[name] - value).abs().max()) <= 1e-4 * float(value.abs().max()), name
