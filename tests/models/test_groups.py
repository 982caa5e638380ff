from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch import nn

from gspool.models import Embedder, parameter_groups


@pytest.fixture(scope="module")
def model() -> Embedder:
    return Embedder("resnet20", pooling="gsp", dim=8, pooling_options={"prototypes": 4})


@pytest.mark.parametrize(
    "multipliers",
    [
        None,
        {},
        {"backbone": 0.1},
        {"backbone": 0.1, "backbone.stages.2": 0.5, "bn1": 3.0, "head": 10, "prototypes": 100},
    ],
)
@pytest.mark.parametrize("freeze", ["none", "batchnorm", "all"])
def test_every_parameter_is_in_exactly_one_group(model: Embedder, multipliers: dict | None, freeze: str) -> None:
    groups = model.freeze(freeze).parameter_groups(lr=1.0, weight_decay=1e-4, multipliers=multipliers)
    counts = Counter(id(parameter) for group in groups for parameter in group["params"])
    assert counts == Counter(id(parameter) for parameter in model.parameters())


def settings_by_name(model: nn.Module, groups: list[dict]) -> dict[str, tuple[float, float]]:
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return {names[id(p)]: (group["lr"], group["weight_decay"]) for group in groups for p in group["params"]}


def test_the_longest_fitting_key_decides_the_rate(model: Embedder) -> None:
    multipliers = {"backbone": 0.1, "backbone.stages.2": 0.5, "prototypes": 100.0}
    rates = settings_by_name(model, model.parameter_groups(2.0, 0.0, multipliers))
    for name, (rate, _) in rates.items():
        if name.startswith("backbone.stages.2."):
            assert rate == pytest.approx(1.0), name
        elif name.startswith("backbone."):
            assert rate == pytest.approx(0.2), name
        elif name.endswith("prototypes"):
            assert rate == pytest.approx(200.0), name
        else:
            assert rate == 2.0, name


def test_normalisation_is_not_decayed_and_all_else_is(model: Embedder) -> None:
    for name, (_, decay) in settings_by_name(model, model.parameter_groups(1.0, 1e-4)).items():
        assert decay == (0.0 if ".bn1." in name or ".bn2." in name else 1e-4), name


def test_layer_norm_is_not_decayed_and_biases_are() -> None:
    block = nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2), nn.GroupNorm(1, 2))
    decays = {name: decay for name, (_, decay) in settings_by_name(block, parameter_groups(block, 1.0, 0.5)).items()}
    assert decays == {"0.weight": 0.5, "0.bias": 0.5, "1.weight": 0, "1.bias": 0, "2.weight": 0, "2.bias": 0}


def test_an_optimiser_takes_the_groups(model: Embedder) -> None:
    optimiser = torch.optim.Adam(model.parameter_groups(1e-5, 1e-4, {"head": 10}), eps=1e-7)
    assert {group["name"] for group in optimiser.param_groups} == {"rest", "rest, not decayed", "head"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"lr": -1.0}, "cannot be negative, got lr = -1.0"),
        ({"lr": 1.0, "weight_decay": -0.1}, "weight_decay = -0.1"),
        ({"lr": 1.0, "multipliers": {"head": -2}}, "head = -2"),
        ({"lr": 1.0, "multipliers": {"prototype": 2}}, "no parameter is called 'prototype'.* prototypes"),
        ({"lr": 1.0, "multipliers": {"zzz": 2}}, "no parameter is called 'zzz'.* backbone"),
    ],
)
def test_wrong_groups_are_refused_in_words(model: Embedder, arguments: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        model.parameter_groups(**arguments)
