"""The one-line swap on real architectures of torchvision and timm, in small variants with random weights.

With mu = 1 each of them gives what it gave. One of every kind also trains with mu = 0.3, and its weights travel by
state dict.
"""

from __future__ import annotations

import copy
import re
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
import timm
import torch
import torchvision.models as vision
from timm.models.convmixer import ConvMixer
from timm.models.metaformer import MetaFormer
from torch import nn
from torchvision.models.convnext import CNBlockConfig
from torchvision.models.resnet import BasicBlock, Bottleneck
from torchvision.models.swin_transformer import PatchMergingV2, SwinTransformerBlockV2

from gspool.models.replace import SwappedPooling, replace_pooling
from gspool.pooling.gsp import GSP
from models.networks import TINY_VIT, Nothing

if TYPE_CHECKING:
    from collections.abc import Callable

CLASSES = 7


class Architecture(NamedTuple):
    build: Callable[[], nn.Module]
    size: int
    place: str


def of_timm(name: str, size: int, place: str, **options: object) -> Architecture:
    return Architecture(lambda: timm.create_model(name, **{**options, "num_classes": CLASSES}), size, place)


def of_torchvision(
    build: Callable[..., nn.Module], size: int, place: str, *args: object, **options: object
) -> Architecture:
    return Architecture(lambda: build(*args, num_classes=CLASSES, **options), size, place)


def small_convnext(num_classes: int) -> nn.Module:
    return vision.ConvNeXt([CNBlockConfig(16, 32, 1), CNBlockConfig(32, None, 1)], num_classes=num_classes)


TINY_SWIN = {"patch_size": [4, 4], "embed_dim": 12, "depths": [2, 2], "num_heads": [2, 4], "window_size": [4, 4]}
TINY_TIMM_SWIN = {"embed_dim": 12, "depths": (1, 1), "num_heads": (2, 4), "window_size": 4, "img_size": 64}

ARCHITECTURES = {
    # Pooling by a module, [B, C, H, W].
    "torchvision resnet": of_torchvision(vision.ResNet, 64, "avgpool", BasicBlock, [1, 1, 1, 1]),
    "torchvision resnext": of_torchvision(
        vision.ResNet, 64, "avgpool", Bottleneck, [1, 1, 1, 1], groups=32, width_per_group=4
    ),
    "torchvision regnet": of_torchvision(vision.regnet_x_400mf, 64, "avgpool"),
    "torchvision mobilenet_v3": of_torchvision(vision.mobilenet_v3_small, 64, "avgpool"),
    "torchvision efficientnet": of_torchvision(vision.efficientnet_b0, 64, "avgpool"),
    "torchvision convnext": of_torchvision(small_convnext, 64, "avgpool"),
    "torchvision googlenet": of_torchvision(vision.googlenet, 96, "avgpool", init_weights=False, aux_logits=False),
    "torchvision inception_v3": of_torchvision(
        vision.inception_v3, 112, "avgpool", init_weights=False, aux_logits=False
    ),
    "torchvision squeezenet": of_torchvision(vision.squeezenet1_1, 64, "classifier.3"),
    "torchvision swin": of_torchvision(vision.SwinTransformer, 64, "avgpool", **TINY_SWIN),
    "torchvision swin_v2": of_torchvision(
        vision.SwinTransformer,
        64,
        "avgpool",
        **TINY_SWIN,
        block=SwinTransformerBlockV2,
        downsample_layer=PatchMergingV2,
    ),
    "torchvision maxvit": of_torchvision(vision.MaxVit, 64, "classifier.0", (64, 64), 16, 4, [16, 32], [1, 1], 8, 0.0),
    "timm resnet": of_timm("test_resnet", 64, "global_pool"),
    "timm resnetv2": of_timm("resnetv2_18", 64, "head.global_pool"),
    "timm efficientnet": of_timm("test_efficientnet", 64, "global_pool"),
    "timm mobilenetv3": of_timm("mobilenetv3_small_050", 64, "global_pool"),
    "timm ghostnet": of_timm("ghostnet_050", 64, "global_pool"),
    "timm densenet": of_timm("densenet121", 64, "global_pool", growth_rate=8, block_config=(2, 2, 2)),
    "timm regnet": of_timm("regnetx_002", 64, "head.global_pool"),
    "timm convnext": of_timm("test_convnext", 64, "head.global_pool"),
    "timm nfnet": of_timm("test_nfnet", 64, "head.global_pool"),
    "timm byobnet": of_timm("test_byobnet", 64, "head.global_pool"),
    "timm dla": of_timm("dla46x_c", 64, "global_pool"),
    "timm cspnet": of_timm("cs3darknet_focus_s", 64, "head.global_pool"),
    "timm rexnet": of_timm("rexnet_100", 64, "head.global_pool"),
    "timm vovnet": of_timm("ese_vovnet19b_slim_dw", 64, "head.global_pool"),
    "timm convmixer": Architecture(lambda: ConvMixer(32, 2, num_classes=CLASSES), 64, "global_pool"),
    "timm metaformer": Architecture(
        lambda: MetaFormer(depths=(1, 1, 1, 1), dims=(8, 16, 24, 32), num_classes=CLASSES), 64, "head.global_pool"
    ),
    "timm mobilevit": of_timm("mobilevit_xxs", 64, "head.global_pool"),
    "timm edgenext": of_timm("edgenext_xx_small", 64, "head.global_pool"),
    "timm hrnet": of_timm("hrnet_w18_small", 64, "global_pool"),
    # Pooling by a module, [B, H, W, C].
    "timm swin": of_timm("swin_tiny_patch4_window7_224", 64, "head.global_pool", **TINY_TIMM_SWIN),
    "timm swinv2": of_timm("swinv2_tiny_window8_256", 64, "head.global_pool", **TINY_TIMM_SWIN),
    # Pooling by a function: the layer goes behind the module that gives the map or the tokens.
    "torchvision densenet": of_torchvision(vision.DenseNet, 64, "features.global_pooling", 8, (2, 2, 2), 16),
    "torchvision mobilenet_v2": of_torchvision(vision.mobilenet_v2, 64, "features.global_pooling", width_mult=0.35),
    "torchvision mnasnet": of_torchvision(vision.mnasnet0_5, 64, "layers.global_pooling"),
    "torchvision shufflenet": of_torchvision(vision.shufflenet_v2_x0_5, 64, "conv5.global_pooling"),
    "timm mixer": of_timm("mixer_s32_224", 96, "norm.global_pooling", img_size=96),
    "timm pvt_v2": of_timm("pvt_v2_b0", 64, "stages.global_pooling"),
    "timm levit": of_timm("levit_128s", 128, "stages.global_pooling", img_size=128),
    "timm mambaout": of_timm("test_mambaout", 64, "stages.global_pooling"),
    "timm hiera": of_timm(
        "hiera_tiny_224", 64, "blocks.3.global_pooling", img_size=(64, 64), embed_dim=16, stages=(1, 1, 1, 1)
    ),
    "timm beit": of_timm("beit_base_patch16_224", 64, "norm.global_pooling", **TINY_VIT),
    # Pooling by a function, where timm keeps a slot for a module.
    "timm vit": of_timm("vit_tiny_patch16_224", 64, "attn_pool", global_pool="avg", **TINY_VIT),
    "timm vit, registers": of_timm(
        "vit_tiny_patch16_224", 64, "attn_pool", global_pool="avg", reg_tokens=4, **TINY_VIT
    ),
    "timm eva": of_timm("eva02_tiny_patch14_224", 56, "attn_pool", **{**TINY_VIT, "img_size": 56}),
}


# Maps and tokens, channels first and last; pooling by a module, a function, a slot; one output and several.
ONE_OF_EVERY_KIND = (
    "torchvision resnet",
    "torchvision googlenet",
    "torchvision squeezenet",
    "torchvision swin",
    "torchvision maxvit",
    "timm convnext",
    "timm mobilenetv3",
    "timm swin",
    "torchvision densenet",
    "timm mixer",
    "timm levit",
    "timm hiera",
    "timm beit",
    "timm vit",
)


@pytest.fixture(scope="module", params=ARCHITECTURES)
def built(request: pytest.FixtureRequest) -> tuple[Architecture, nn.Module]:
    """Build each network once; tests take a copy."""
    torch.manual_seed(0)
    architecture = ARCHITECTURES[request.param]
    with warnings.catch_warnings():  # what a library says while it builds its own model is not ours to judge
        warnings.simplefilter("ignore")
        model = architecture.build()
    # Batch norms of a fresh network divide by one, and features may all but vanish: let them see some images first.
    # Some classifiers start at zero, and every network with them gives the same.
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.momentum = 1.0
        elif isinstance(module, nn.Linear) and not module.weight.any():
            nn.init.normal_(module.weight, std=0.1)
    with torch.no_grad():
        model.train()(torch.randn(4, 3, architecture.size, architecture.size))
    return architecture, model


def swapped(model: nn.Module, architecture: Architecture, **options: object) -> SwappedPooling:
    example = torch.randn(2, 3, architecture.size, architecture.size)
    assert replace_pooling(model, "gsp", example=example, prototypes=8, **options) is model
    found = [path for path, module in model.named_modules() if isinstance(module, SwappedPooling)]
    assert found == [architecture.place]
    module = model.get_submodule(architecture.place)
    assert isinstance(module, SwappedPooling)
    return module


def test_mu_one_gives_the_outputs_of_the_original(built: tuple[Architecture, nn.Module]) -> None:
    architecture, model = built[0], copy.deepcopy(built[1]).eval()
    images = torch.randn(3, 3, architecture.size, architecture.size)
    with torch.no_grad():
        before = model(images)
        place = swapped(model, architecture, mu=1.0)
        after = model(images)
        place.layer.__class__ = Nothing  # the layer is really in the way of the data
        without = model(images)
    scale = before.abs().max()
    assert scale > 0
    torch.testing.assert_close(after, before, rtol=0, atol=1e-5 * float(scale))
    assert not torch.allclose(without, before, rtol=0, atol=1e-3 * float(scale))


@pytest.mark.parametrize("built", ONE_OF_EVERY_KIND, indirect=True)
def test_it_trains_and_its_weights_travel_by_state_dict(built: tuple[Architecture, nn.Module]) -> None:
    architecture, model = built[0], copy.deepcopy(built[1]).train()
    flags = {path: module.training for path, module in model.named_modules()}
    parameters = dict(model.named_parameters())
    original = copy.deepcopy(model.state_dict())
    other = copy.deepcopy(model).eval()
    layer = swapped(model, architecture, mu=0.3).layer
    # The swap leaves no trace: flags, parameters (the very objects) and statistics are as they were.
    assert all(module.training == flags.get(path, True) for path, module in model.named_modules())
    assert all(model.get_parameter(path) is parameter for path, parameter in parameters.items())
    assert all(torch.equal(model.state_dict()[name], value) for name, value in original.items())
    # A checkpoint of the original network fits, but for the prototypes.
    told = model.load_state_dict(original, strict=False)
    key = f"{architecture.place}.layer.prototypes"
    assert (told.missing_keys, told.unexpected_keys) == ([key], [])
    swapped(other, architecture, mu=0.3)
    assert not torch.equal(model.get_parameter(key), other.get_parameter(key))
    other.load_state_dict(model.state_dict())
    images = torch.randn(4, 3, architecture.size, architecture.size)
    with torch.no_grad():
        torch.testing.assert_close(other(images), model.eval()(images), rtol=0, atol=0)

    model.train()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    output = model(images)
    output = output[0] if isinstance(output, tuple) else output
    loss = nn.functional.cross_entropy(output, torch.tensor([0, 1, 2, 3]))
    loss.backward()
    assert loss.isfinite()
    assert isinstance(layer, GSP)
    assert layer.prototypes.grad.isfinite().all()
    assert layer.prototypes.grad.abs().max() > 0
    old = layer.prototypes.detach().clone()
    optimiser.step()
    assert not torch.equal(layer.prototypes, old)


PAGE = (Path(__file__).parents[2] / "docs" / "replace_pooling.md").read_text(encoding="utf-8")


def test_the_page_lists_the_tested_architectures() -> None:
    rows = re.findall(r"^\| ((?:timm|torchvision) [^|]+) \| `([^`]+)` \|$", PAGE, flags=re.MULTILINE)
    assert dict(rows) == {name: architecture.place for name, architecture in ARCHITECTURES.items()}


def test_the_examples_of_the_page_run() -> None:
    examples = re.findall(r"^```python\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)
    assert len(examples) == 3
    names: dict[str, Any] = {}
    for example in examples:
        exec(example, names)
    assert names["logits"].shape == (2, 1000)
    assert names["pool"] is names["model"].global_pool.layer
