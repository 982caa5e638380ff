from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from gspool.models import Backbone, Embedder, Pixels


def snapshot(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def moved_by_a_step(model: Embedder) -> set[str]:
    """Names of what one step of a rough optimiser changes, statistics included."""
    before = snapshot(model)
    model.train()
    optimiser = torch.optim.SGD(model.parameter_groups(lr=0.5, weight_decay=0.1))
    target = nn.functional.normalize(torch.randn(4, model.out_dim), dim=1)
    loss = (model(torch.randint(256, (4, 3, 32, 32), dtype=torch.uint8)) - target).square().sum()
    loss.backward()
    optimiser.step()
    return {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}


def is_batch_norm(name: str) -> bool:
    return any(f"bn{number}." in name for number in (1, 2))


@pytest.fixture
def model() -> Embedder:
    torch.manual_seed(0)
    return Embedder("resnet20", pooling="gap", dim=8)


@pytest.mark.parametrize(
    ("freeze", "held"),
    [("none", lambda name: False), ("batchnorm", is_batch_norm), ("all", lambda name: name.startswith("backbone."))],
    ids=["none", "batchnorm", "all"],
)
def test_what_is_frozen_stays_bit_by_bit_and_the_rest_moves(
    freeze: str, held: Callable[[str], bool], model: Embedder
) -> None:
    moved = moved_by_a_step(model.freeze(freeze))
    assert moved == {name for name in model.state_dict() if not held(name)}


@pytest.mark.parametrize("freeze", ["batchnorm", "all"])
def test_freezing_survives_changes_of_mode(model: Embedder, freeze: str) -> None:
    model.freeze(freeze).eval().train().train(False).train(True)
    assert model.training
    assert model.head.training
    norms = [module for module in model.backbone.modules() if isinstance(module, nn.BatchNorm2d)]
    assert len(norms) == 19
    assert not any(module.training for module in norms)
    assert model.backbone.training == (freeze == "batchnorm")


def test_thawing_makes_everything_move_again(model: Embedder) -> None:
    model.freeze("all").freeze("none")
    assert moved_by_a_step(model) == set(model.state_dict())


def test_freezing_in_evaluation_mode_stays_in_evaluation_mode(model: Embedder) -> None:
    assert not model.eval().freeze("none").training


def test_norms_with_an_activation_inside_are_batch_norms_too() -> None:
    model = Embedder("timm/efficientnet_b0", pooling="gap", dim=8, freeze="batchnorm").train()
    norms = [module for module in model.backbone.modules() if isinstance(module, nn.BatchNorm2d)]
    assert norms
    assert not any(module.training or module.weight.requires_grad for module in norms)


class WithFixedPositions(Backbone):
    def __init__(self) -> None:
        super().__init__(channels=4, pixels=Pixels(size=32, resize=32))
        self.patch = nn.Conv2d(3, 4, 8, 8)
        self.positions = nn.Parameter(torch.rand(4, 4, 4), requires_grad=False)

    def forward(self, pixels: Tensor) -> Tensor:
        return self.patch(pixels) + self.positions


def test_what_never_learns_does_not_learn_after_a_thaw() -> None:
    model = Embedder(WithFixedPositions(), pooling="gap", dim=4).freeze("all").freeze("none")
    assert model.backbone.patch.weight.requires_grad
    assert not model.backbone.positions.requires_grad


@pytest.mark.parametrize("name", ["timm/test_vit", "timm/test_resnet"])
def test_all_but_the_last_blocks_are_frozen_with_their_statistics_and_dropout(name: str) -> None:
    model = Embedder(name, pooling="gap", dim=8, backbone_options={"img_size": 32} if "vit" in name else {})
    blocks = model.backbone.parameter_blocks()
    held = {f"backbone.{parameter}" for block in blocks[:-1] for parameter in block}
    last = {f"backbone.{parameter}" for parameter in blocks[-1]}
    moved = moved_by_a_step(model.freeze("all-but-1"))
    assert moved & last
    assert not moved & held
    assert held | last == {f"backbone.{parameter}" for parameter, _ in model.backbone.named_parameters()}
    first = model.backbone.network.blocks[0] if "vit" in name else model.backbone.network.layer1
    assert not any(module.training for module in first.modules())
    assert model.backbone.training


@pytest.mark.parametrize("freeze", ["bn", "all-but-0", "all-but-99", "all-but-1"])
def test_a_setting_that_does_not_fit_is_refused(model: Embedder, freeze: str) -> None:
    if freeze == "all-but-99":
        model = Embedder("timm/test_resnet", pooling="gap", dim=8)
    words = {"all-but-99": "at most 4", "all-but-1": "ResNet20 has no blocks"}
    with pytest.raises(ValueError, match=words.get(freeze, f"none, batchnorm, all or all-but-N.*{freeze!r}")):
        model.freeze(freeze)
