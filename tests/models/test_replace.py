"""Laws of the one-line swap, on small networks whose every step is in view."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
import timm
import torch
import torchvision.models as vision
from torch import nn
from torchvision.models.resnet import BasicBlock

from gspool.functional import gsp_pool
from gspool.models.replace import SwappedPooling, replace_pooling
from gspool.models.replace.choose import choose
from gspool.models.replace.observe import Inputs, Watch
from gspool.pooling.gsp import GSP
from gspool.pooling.layer import PoolingLayer
from models.networks import TINY_VIT, Classifier, Nothing

if TYPE_CHECKING:
    from torch import Tensor


IMAGES = torch.randn(3, 3, 24, 20, generator=torch.Generator().manual_seed(1))


def layer_of(model: nn.Module) -> PoolingLayer:
    (found,) = [module for module in model.modules() if isinstance(module, SwappedPooling)]
    return found.layer


# ---------------------------------------------------------------- what the layer sees, against a second computation


def swap_and_compare(
    model: nn.Module, images: Tensor, pooled: Tensor, head: Callable[[Tensor], Tensor], **options: Any
) -> None:
    """Swap GSP in, and compare the outputs with the GSP of the features that were pooled, read by the head."""
    tokens = pooled if pooled.ndim == 3 else pooled.flatten(2).mT
    pool = GSP(tokens.shape[2], prototypes=4, mu=0.3)
    replace_pooling(model, pool, **options)
    torch.testing.assert_close(model(images), head(gsp_pool(tokens, pool.prototypes, 0.3, 5.0).pooled))


def test_resnet_classifies_the_gsp_of_its_last_map() -> None:
    model, images = vision.ResNet(BasicBlock, [1, 1, 1, 1], num_classes=5).eval(), torch.randn(2, 3, 96, 64)
    x = model.maxpool(model.relu(model.bn1(model.conv1(images))))
    features = model.layer4(model.layer3(model.layer2(model.layer1(x))))
    swap_and_compare(model, images, features, model.fc)


def test_densenet_pools_behind_its_relu() -> None:
    model, images = vision.DenseNet(8, (2, 2), 16, num_classes=5).eval(), torch.randn(2, 3, 96, 64)
    swap_and_compare(model, images, torch.relu(model.features(images)), model.classifier)


@pytest.mark.parametrize(
    ("name", "options", "prefix", "tokens"),
    [
        ("vit_tiny_patch16_224", {"global_pool": "avg"}, 1, None),
        ("vit_tiny_patch16_224", {"global_pool": "avg", "reg_tokens": 3}, 4, None),
        ("beit_base_patch16_224", {}, 1, None),
        # Instead of reading the class token.
        ("vit_tiny_patch16_224", {"reg_tokens": 2}, 3, "patches"),
    ],
)
def test_a_transformer_of_timm_pools_its_patch_tokens_only(
    name: str, options: dict[str, Any], prefix: int, tokens: str | None
) -> None:
    model, images = timm.create_model(name, **options, **TINY_VIT).eval(), torch.randn(2, 3, 64, 64)
    features = model.forward_features(images)
    assert features.shape[1] == prefix + 16
    swap_and_compare(model, images, features[:, prefix:], nn.Sequential(model.fc_norm, model.head), tokens=tokens)


def test_patches_instead_of_the_class_token_torchvision() -> None:
    model, images = vision.VisionTransformer(64, 16, 2, 2, 32, 48, num_classes=5).eval(), torch.randn(2, 3, 64, 64)
    nn.init.normal_(model.heads.head.weight)
    tokens = model.encoder(torch.cat((model.class_token.expand(2, -1, -1), model._process_input(images)), dim=1))
    swap_and_compare(model, images, tokens[:, 1:], model.heads, tokens="patches")


def test_video() -> None:
    model = nn.Sequential(nn.Conv3d(3, 6, 3), nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(6, 2))
    clips = torch.randn(2, 3, 4, 8, 8)
    swap_and_compare(model, clips, model[0](clips), model[3], example=clips)


class WithMetadata(Classifier):
    """A network that takes an image, a category and a scale beside it."""

    def __init__(self) -> None:
        super().__init__(dim=6)
        self.category = nn.Embedding(3, 6)

    def forward(self, x: Tensor, category: Tensor, scale: Tensor, flip: bool = False) -> Tensor:
        features = self.conv(torch.tanh(self.stem(x.flip(-1) if flip else x)))
        return self.head(features.mean((2, 3)) * scale + self.category(category))


@pytest.mark.parametrize("form", ["tuple", "dict"])
def test_networks_with_several_inputs(form: str) -> None:
    model = WithMetadata().double()
    inputs = (IMAGES, torch.tensor([0, 2, 1]), torch.rand(3, 1), True)
    example = inputs if form == "tuple" else dict(zip(("x", "category", "scale", "flip"), inputs, strict=True))
    images, category, scale, _ = inputs
    before = model(images.double(), category, scale.double(), True)
    replace_pooling(model, "gsp", mu=1.0, prototypes=4, example=example)
    torch.testing.assert_close(model(images.double(), category, scale.double(), True), before)
    assert layer_of(model).dim == 6


# ------------------------------------------------------------------------------------------ which call is the pooling


class SqueezeThenPool(Classifier):
    """An attention over channels, by a function too, comes before the pooling."""

    def pooled(self, x: Tensor) -> Tensor:
        x = x * torch.sigmoid(self.gate(x.mean((2, 3))))[..., None, None]
        return self.conv(x).mean((2, 3))


class ChannelsLast(Classifier):
    def pooled(self, x: Tensor) -> Tensor:
        return self.conv(x).permute(0, 2, 3, 1).contiguous().mean(dim=(1, 2))


class ChannelsBeforeTokens(Classifier):
    def pooled(self, x: Tensor) -> Tensor:
        return self.conv(x).flatten(2).mean(-1)


class Rectified(Classifier):
    def pooled(self, x: Tensor) -> Tensor:
        return nn.functional.relu(self.conv(x)).mean((2, 3))


class MeanOfAverageAndMaximum(Classifier):
    def pooled(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        return 0.5 * (x.mean((2, 3)) + x.amax((2, 3)))


@pytest.mark.parametrize(
    "kind", [Classifier, SqueezeThenPool, ChannelsLast, ChannelsBeforeTokens, Rectified, MeanOfAverageAndMaximum]
)
def test_a_function_is_found_and_the_layer_goes_behind_its_source(kind: type[Classifier]) -> None:
    model = kind()
    maps: list[Tensor] = []
    handle = model.conv.register_forward_hook(lambda module, args, output: maps.append(output))
    with torch.no_grad():
        before = model(IMAGES)
    handle.remove()
    features = torch.relu(maps[0]) if kind is Rectified else maps[0]
    swap_and_compare(model, IMAGES, features, model.head, example=IMAGES)
    assert isinstance(model.conv.global_pooling, SwappedPooling)
    if kind is not MeanOfAverageAndMaximum:
        replace_pooling(model, GSP(6, prototypes=3, mu=1.0))
        torch.testing.assert_close(model(IMAGES), before)


@pytest.mark.parametrize(
    ("global_pool", "name"), [("avg", "gap"), ("max", "gmp"), ("avgmax", "avgmax"), ("catavgmax", "catavgmax")]
)
def test_the_same_pooling_by_another_layer_changes_nothing(global_pool: str, name: str) -> None:
    model = timm.create_model("test_resnet", global_pool=global_pool, num_classes=5).eval()
    images = torch.randn(2, 3, 96, 96)
    with torch.no_grad():
        before = model(images)
        torch.testing.assert_close(replace_pooling(model, name)(images), before)
    assert isinstance(model.global_pool, SwappedPooling)


class MapBesideVector(nn.Module):
    """A backbone that gives its last map beside the pooled vector, as those of transformers do."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.pooler = nn.Conv2d(3, 6, 3), nn.AdaptiveAvgPool2d(1)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        features = self.conv(x)
        return {"map": features, "vector": self.pooler(features)}


class SqueezedInPlace(MapBesideVector):
    """The map was there before it was averaged for the gate, but not with these numbers."""

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        features = self.conv(x)
        return {"map": features.mul_(torch.sigmoid(self.pooler(features)))}


class TakesFromDictionary(nn.Module):
    def __init__(self, backbone: nn.Module, name: str) -> None:
        super().__init__()
        self.backbone, self.name, self.head = backbone, name, nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.backbone(x)[self.name].mean((2, 3)))


def test_a_map_that_is_given_beside_the_vector_hides_no_pooling() -> None:
    model = TakesFromDictionary(MapBesideVector(), "vector").eval()
    with torch.no_grad():
        before = model(IMAGES)
        torch.testing.assert_close(replace_pooling(model, "gsp", mu=1.0, example=IMAGES)(IMAGES), before)
    assert isinstance(model.backbone.pooler, SwappedPooling)


def test_a_map_that_is_changed_in_place_after_its_average_is_another_map() -> None:
    model = TakesFromDictionary(SqueezedInPlace(), "map").eval()
    assert choose(Watch(model).run(model, Inputs((IMAGES,), {}))).function == "mean"


@pytest.mark.parametrize("kind", ["resnet", "convnext", "swin"])
def test_networks_of_transformers(kind: str) -> None:
    transformers = pytest.importorskip("transformers")
    stages = {"depths": [1, 1], "hidden_sizes": [8, 12], "num_labels": 4}
    config, model_type = {
        "resnet": (
            transformers.ResNetConfig(embedding_size=8, layer_type="basic", **stages),
            transformers.ResNetForImageClassification,
        ),
        "convnext": (transformers.ConvNextConfig(num_stages=2, **stages), transformers.ConvNextForImageClassification),
        "swin": (
            transformers.SwinConfig(embed_dim=8, depths=[1, 1], num_heads=[2, 2], image_size=56, num_labels=4),
            transformers.SwinForImageClassification,
        ),
    }[kind]
    model, images = model_type(config).eval(), torch.randn(2, 3, 56, 56)
    with torch.no_grad():
        before = model(images).logits
        replace_pooling(model, "gsp", mu=1.0, prototypes=4, example=images)
        torch.testing.assert_close(model(images).logits, before)
        layer_of(model).__class__ = Nothing
        assert not torch.allclose(model(images).logits, before)


def test_a_network_without_classifier() -> None:
    model = timm.create_model("test_convnext", num_classes=0).eval()
    images = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        before = model(images)
        torch.testing.assert_close(replace_pooling(model, "gsp", mu=1.0)(images), before)
    assert isinstance(model.head.global_pool, SwappedPooling)


def test_a_named_module_is_replaced_whatever_it_computes() -> None:
    class PowerMean(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.square().mean((2, 3)).sqrt()

    model = nn.Sequential(nn.Conv2d(3, 6, 3), PowerMean(), nn.Linear(6, 2))
    with pytest.raises(ValueError, match=r"mean\(\) in the forward of '1' \(PowerMean\).*pass where='1'"):
        replace_pooling(model, "gsp")
    features = model[0](IMAGES)
    replace_pooling(model, GSP(6, prototypes=3, mu=1.0), where="1")
    torch.testing.assert_close(model(IMAGES), model[2](features.mean((2, 3))))


# --------------------------------------------------------------------------------------------- what stays as it was


def test_the_swap_draws_no_random_numbers_and_keeps_frozen_norms_frozen() -> None:
    model = vision.ResNet(BasicBlock, [1, 1, 1, 1], num_classes=5).train()
    model.bn1.eval()
    pool = GSP(512, prototypes=4)
    state = torch.get_rng_state()
    replace_pooling(model, pool)
    assert torch.equal(torch.get_rng_state(), state)
    assert not model.bn1.training
    assert model.layer1.training
    assert pool.training
    assert torch.equal(model.bn1.running_mean, torch.zeros(64))


def test_a_second_swap_takes_the_place_of_the_first() -> None:
    model = replace_pooling(Classifier(), "gsp", example=IMAGES, prototypes=3)
    first = layer_of(model)
    second = GSP(6, prototypes=5)
    assert layer_of(replace_pooling(model, second)) is second
    assert not any(module is first for module in model.modules())
    with pytest.raises(ValueError, match="7 channels, but 6 are pooled"):
        replace_pooling(model, GSP(7))
    assert layer_of(model) is second


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_the_layer_follows_the_precision_of_the_network(dtype: torch.dtype) -> None:
    model = Classifier().to(dtype)
    before = model(IMAGES.to(dtype))
    replace_pooling(model, "gsp", mu=1.0, example=IMAGES)
    assert layer_of(model).prototypes.dtype == dtype
    after = model(IMAGES.to(dtype))
    assert after.dtype == dtype
    torch.testing.assert_close(after, before, rtol=0, atol=2e-2 if dtype == torch.bfloat16 else 1e-12)


def test_timm_can_still_change_the_number_of_classes() -> None:
    model = replace_pooling(timm.create_model("test_convnext", num_classes=5), "gsp")
    layer = layer_of(model)
    model.reset_classifier(9)
    assert layer_of(model) is layer
    assert model.eval()(torch.randn(2, 3, 64, 64)).shape == (2, 9)


# --------------------------------------------------------------------------------- copies, files, compilers, exporters


class LastSequential(Classifier):
    """A network like MobileNetV2: a Sequential gives the map, a function pools it."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(6, 6, 1), nn.ReLU())

    def pooled(self, x: Tensor) -> Tensor:
        return torch.flatten(nn.functional.adaptive_avg_pool2d(self.features(x), 1), 1)


KINDS_OF_PLACES = {
    "1": lambda: nn.Sequential(nn.Conv2d(3, 6, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 4)),
    "features.global_pooling": LastSequential,
    "conv.global_pooling": Classifier,
    "attn_pool": lambda: timm.create_model("vit_tiny_patch16_224", global_pool="avg", **TINY_VIT),
}


@pytest.mark.parametrize("place", KINDS_OF_PLACES)
def test_a_swapped_network_can_be_copied_saved_compiled_and_exported(place: str) -> None:
    model = KINDS_OF_PLACES[place]().eval()
    images = torch.randn(2, 3, 64, 64)
    replace_pooling(model, "gsp", example=images, prototypes=3)
    assert isinstance(model.get_submodule(place), SwappedPooling)
    expected = model(images).detach()
    duplicate = copy.deepcopy(model)
    with torch.no_grad():
        layer_of(model).prototypes.normal_()
    assert not torch.allclose(model(images), expected, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(duplicate(images), expected)
    torch.testing.assert_close(pickle.loads(pickle.dumps(duplicate))(images), expected)
    torch.testing.assert_close(torch.compile(duplicate, backend="eager", fullgraph=True)(images), expected)
    torch.testing.assert_close(torch.export.export(duplicate, (images,)).module()(images), expected)
