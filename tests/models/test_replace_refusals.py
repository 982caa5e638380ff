"""What the one-line swap cannot do it says, names what it found and what to do, and leaves the network as it was."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import timm
import torch
import torchvision.models as vision
from torch import nn

from gspool.functional.results import Pooled
from gspool.models.replace import SwappedPooling, replace_pooling
from gspool.pooling.gsp import GSP
from gspool.pooling.layer import PoolingLayer
from models.networks import TINY_VIT, Classifier

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

IMAGES = torch.randn(2, 3, 24, 24, generator=torch.Generator().manual_seed(1))


class ResidualThenPool(Classifier):
    """The average of a sum is the sum of averages: equal outputs alone would not show that half the map is missed."""

    def pooled(self, x: Tensor) -> Tensor:
        return (self.conv(x) + x).mean((2, 3))


class ScaledThenPool(Classifier):
    def pooled(self, x: Tensor) -> Tensor:
        return (2 * self.conv(x)).mean((2, 3))


class SourceTwice(Classifier):
    def pooled(self, x: Tensor) -> Tensor:
        return self.conv(self.conv(x)).mean((2, 3))


class MapUsedTwice(Classifier):
    def pooled(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        return x.mean((2, 3)) + x[:, :, 0, 0]


class TwoPoolings(Classifier):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.AdaptiveAvgPool2d(1), nn.AdaptiveAvgPool2d(1)

    def pooled(self, x: Tensor) -> Tensor:
        a, b = self.conv(x), torch.sin(x)
        return (self.left(a) + self.right(b)).flatten(1)


class Flattened(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(4 * 22 * 22, 5))


class Negative(PoolingLayer):
    def pool(self, x: Tensor, mask: Tensor | None = None) -> Pooled:
        return Pooled(-x.flatten(2).mean(-1))


class Broken(PoolingLayer):
    def pool(self, x: Tensor, mask: Tensor | None = None) -> Pooled:
        raise ValueError("this map is too small for me")


def small_vgg() -> nn.Module:
    with torch.device("meta"):  # its classifier has a hundred million weights
        model = vision.VGG(nn.Identity(), num_classes=5)
    model.features = nn.Sequential(nn.Conv2d(3, 8, 3, stride=4), nn.ReLU())
    model.classifier = nn.Sequential(nn.Linear(8 * 49, 5))
    return model


def compiled_in_place() -> nn.Module:
    model = Classifier()
    model.compile()
    return model


REFUSALS: dict[str, tuple[Callable[[], nn.Module], Tensor, str]] = {
    "vgg": (
        small_vgg,
        IMAGES,
        r"'avgpool' \(AdaptiveAvgPool2d\), \(2, 8, 7, 7\).*reads \(2, 392\).*weights for every position",
    ),
    "flattened": (Flattened, IMAGES, r"weights for every position"),
    "no pooling": (lambda: nn.Sequential(nn.Conv2d(3, 4, 3)), IMAGES, "that is the output of the network"),
    "no map": (lambda: nn.Sequential(nn.Flatten(), nn.Linear(1728, 3)), IMAGES, "none of its modules returns a map"),
    "timm without pooling": (
        lambda: timm.create_model("test_resnet", num_classes=0, global_pool=""),
        torch.randn(2, 3, 96, 96),
        "that is the output of the network",
    ),
    "several": (TwoPoolings, IMAGES, r"pools in 2 places.*'left'.*'right'.*where="),
    "class token of torchvision": (
        lambda: vision.VisionTransformer(64, 16, 1, 2, 32, 48, num_classes=5),
        torch.randn(2, 3, 64, 64),
        r"reads a class token.*\(2, 17, 32\).*tokens='patches'",
    ),
    "class token of timm": (
        lambda: timm.create_model("vit_tiny_patch16_224", **TINY_VIT),
        torch.randn(2, 3, 64, 64),
        r"reads a class token.*tokens='patches'.*global_pool='avg'",
    ),
    "attention pooling": (
        lambda: timm.create_model("vit_tiny_patch16_224", global_pool="map", **TINY_VIT),
        torch.randn(2, 3, 64, 64),
        r"'attn_pool' \(AttentionPoolLatent\).*neither an average nor a maximum.*where='attn_pool'",
    ),
    # Its stride by average pooling then is a global pooling, and the only one.
    "image too small": (
        lambda: timm.create_model("test_resnet", num_classes=5),
        torch.randn(2, 3, 16, 16),
        r"saw a map of a single position, \(2, 192, 1, 1\).*larger images",
    ),
    "image too small, stride by convolution": (
        lambda: timm.create_model("regnetx_002", num_classes=5),
        torch.randn(2, 3, 32, 32),
        r"saw a map of a single position, \(2, 368, 1, 1\).*larger images",
    ),
    "residual": (ResidualThenPool, IMAGES, r"mean\(\).*a layer there does not see what is pooled now"),
    "scaled": (ScaledThenPool, IMAGES, r"mean\(\).*a layer there does not see what is pooled now"),
    "source runs twice": (SourceTwice, IMAGES, "not the output of one module that runs once"),
    "map used twice": (MapUsedTwice, IMAGES, r"mean\(\).*the pooled vector becomes another one"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_it_says_why_and_leaves_the_network_as_it_was(name: str) -> None:
    build, images, message = REFUSALS[name]
    model = build().train()
    printed, keys = repr(model), list(model.state_dict())
    with torch.no_grad():
        before = model.eval()(images)
    model.train()
    with pytest.raises(ValueError, match=f"(?s){message}"):
        replace_pooling(model, "gsp", example=images, prototypes=3)
    assert repr(model) == printed
    assert list(model.state_dict()) == keys
    assert all(module.training for module in model.modules())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    with torch.no_grad():
        assert torch.equal(model.eval()(images), before)


def test_one_of_several_can_be_named() -> None:
    model = TwoPoolings()
    before = model(IMAGES)
    replace_pooling(model, "gsp", where="right", mu=1.0, example=IMAGES)
    assert isinstance(model.right, SwappedPooling)
    assert isinstance(model.left, nn.AdaptiveAvgPool2d)
    torch.testing.assert_close(model(IMAGES), before)
    replace_pooling(model, "gsp", where="left", mu=1.0, example=IMAGES)
    torch.testing.assert_close(model(IMAGES), before)
    with pytest.raises(ValueError, match=r"in 2 places before: name one of \['left', 'right'\]"):
        replace_pooling(model, "gsp")
    third = GSP(6, prototypes=3)
    replace_pooling(model, third, where="right")
    assert model.right.layer is third
    assert model.left.layer is not third


def test_a_second_swap_is_refused_what_a_first_one_is() -> None:
    model = replace_pooling(vision.DenseNet(8, (2, 2), 16), "gap")
    swapped = model.features.global_pooling
    former = swapped.layer
    for layer, message in ((Negative(32), "applies a ReLU to the output of 'features',"), (Broken(32), "too small")):
        with pytest.raises(ValueError, match=message):
            replace_pooling(model, layer)
        assert swapped.layer is former
    assert replace_pooling(model, "gsp", prototypes=3).features.global_pooling.layer.dim == 32


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"model": "resnet50"}, "model must be a torch.nn.Module, got str"),
        ({"pooling": nn.AdaptiveAvgPool2d(1)}, "pooling must be a pooling layer.*got AdaptiveAvgPool2d"),
        ({"pooling": "gps"}, "Did you mean 'gsp'"),
        ({"pooling": GSP(6), "mu": 0.5}, r"options \['mu'\] go with the name of a layer"),
        ({"mü": 0.5}, "has no option 'mü'"),
        ({"mu": 2.0}, "mu"),
        ({"tokens": "all"}, "tokens can be 'patches'"),
        ({"tokens": "patches", "where": "conv"}, "give one"),
        ({"tokens": "patches"}, "no class token is read"),
        ({"example": torch.zeros(2, 3, 24, 24, dtype=torch.uint8)}, "floating point batch.*uint8"),
        ({"example": "image.png"}, "floating point batch.*str"),
        ({"example": {"image": "image.png"}}, "floating point batch.*dict"),
        ({"example": (IMAGES, IMAGES)}, r"did not run on inputs \(.*\), \(.*a tuple or a dict"),
        ({"example": torch.zeros(24, 24)}, r"floating point batch.*\(24, 24\)"),
        ({"example": torch.zeros(2, 5, 24, 24)}, r"did not run on inputs \(2, 5, 24, 24\): .*example="),
        ({"example": torch.full((2, 3, 24, 24), float("nan"))}, "not finite"),
        ({"pooling": GSP(7)}, r"GSP was created for 7 channels, but 6 are pooled by .*mean\(\).*dim=6"),
        ({"pooling": "vlad"}, r"NetVLAD returns vectors of 128 numbers, but the classifier reads 6"),
        (
            {"model": timm.create_model("test_resnet", global_pool="catavgmax", num_classes=5), "example": None},
            "GSP returns vectors of 96 numbers, but the classifier reads 192",
        ),
        (
            {"model": vision.DenseNet(8, (2, 2), 16), "pooling": Negative(32), "example": None},
            "applies a ReLU to the output of 'features'",
        ),
        ({"pooling": Broken(6)}, "this map is too small for me"),
        ({"where": "con"}, r"'con' is no module of this Classifier; did you mean 'conv'\?"),
        ({"where": ""}, "'' is no module"),
        (
            {"where": "conv"},
            r"where='conv' \(Conv2d\) took \(2, 6, 11, 11\) to \(2, 6, 11, 11\): that is no pooling",
        ),
        ({"where": "head"}, "that is no pooling to one vector"),
        ({"where": "gate"}, "ran 0 times"),
        ({"model": Classifier().to("meta")}, "meta device"),
        ({"model": torch.compile(Classifier())}, "already compiled"),
        ({"model": compiled_in_place()}, "already compiled"),
    ],
)
def test_wrong_arguments(arguments: dict[str, object], message: str) -> None:
    given = {"model": Classifier(), "pooling": "gsp", "example": IMAGES} | arguments
    model = given.pop("model")
    printed = repr(model)
    with pytest.raises(ValueError, match=f"(?s){message}"):
        replace_pooling(model, given.pop("pooling"), **given)
    assert repr(model) == printed
    assert not isinstance(model, nn.Module) or not any(module._forward_hooks for module in model.modules())
