from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from gspool.models import Backbone, Pixels, create_backbone, list_backbones
from gspool.models.create import check_backbone_options


def test_own_and_timms_names_are_listed_once_and_in_patterns() -> None:
    names = list_backbones()
    assert len(names) == len(set(names)) > 1000
    assert {"bninception", "resnet20", "keras/resnet50", "timm/resnetv2_50", "timm/tf_efficientnetv2_b3"} <= set(names)
    assert list_backbones("keras/*") == ["keras/resnet50"]
    assert list_backbones("nothing*") == []


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("resnet50", {}, "did you mean timm/resnet50"),
        ("bn-inception", {}, "did you mean bninception"),
        ("keras/resnet5", {}, "did you mean keras/resnet50"),
        ("§", {}, r"no backbone '§'; gspool.models.list_backbones\(\) lists all"),
        (50, {}, "named by a string such as 'timm/resnet50', got int"),
        ("resnet20", {"depth": 56}, "has no option depth; its options are flavour, weights, pixels"),
        ("resnet20", {"flavour": "vanilla"}, "one of postactivation, preactivation-bottleneck, got 'vanilla'"),
        *(("small_cnn", {"width": width}, f"width is .*got {width}") for width in (0, -1, 1.5, True)),
    ],
)
def test_wrong_names_and_options_get_the_right_ones(name: Any, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        create_backbone(name, **options)


@pytest.mark.parametrize(
    ("name", "options", "size", "shape"),
    [
        ("bninception", {}, (227, 227), (1024, 8, 8)),
        ("bninception", {}, (224, 224), (1024, 7, 7)),
        ("bninception", {}, (33, 66), (1024, 2, 3)),
        ("bninception", {}, (1, 1), (1024, 1, 1)),
        ("keras/resnet50", {}, (227, 227), (2048, 8, 8)),
        ("resnet20", {}, (64, 64), (64, 16, 16)),
        ("resnet20", {}, (33, 7), (64, 9, 2)),
        ("resnet20", {"flavour": "preactivation-bottleneck"}, (64, 64), (256, 16, 16)),
        ("resnet20", {"flavour": "preactivation-bottleneck"}, (33, 7), (256, 9, 2)),
        ("small_cnn", {}, (64, 64), (128, 8, 8)),
        ("small_cnn", {"width": 3}, (32, 32), (24, 4, 4)),
        ("small_cnn", {"width": 1}, (9, 9), (8, 1, 1)),
    ],
)
def test_maps_of_our_own_backbones(
    name: str, options: dict[str, Any], size: tuple[int, int], shape: tuple[int, int, int]
) -> None:
    with torch.no_grad():
        assert create_backbone(name, **options).eval()(torch.zeros(1, 3, *size)).shape == (1, *shape)


@pytest.mark.parametrize(
    ("name", "mean"), [("bninception", (104.0, 117.0, 128.0)), ("keras/resnet50", (103.939, 116.779, 123.68))]
)
def test_published_weights_come_with_their_pixels(name: str, mean: tuple[float, float, float]) -> None:
    assert create_backbone(name).pixels == Pixels(mean, (1.0, 1.0, 1.0), "BGR", "0-255", size=227, resize=256)


@pytest.mark.parametrize(("name", "classifier"), [("small_cnn", {}), ("resnet20", {"fc.weight": torch.zeros(9, 64)})])
def test_a_file_of_weights_loads_without_its_classifier(
    name: str, classifier: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    trained = create_backbone(name)
    save_file({**trained.state_dict(), **classifier}, tmp_path / "weights.safetensors")
    loaded = create_backbone(name, weights=tmp_path / "weights.safetensors").state_dict()
    assert all(torch.equal(value, loaded[key]) for key, value in trained.state_dict().items())


def test_the_order_of_memory_in_small_cnn_changes_nothing_but_speed() -> None:
    backbone, images = create_backbone("small_cnn").double().eval(), torch.rand(2, 3, 32, 32, dtype=torch.float64)
    torch.testing.assert_close(backbone(images), backbone.layers(images))


def test_pixels_can_be_changed_in_part_or_given_in_full() -> None:
    changed = create_backbone("bninception", pixels={"mean": [103.53, 116.28, 123.675]}).pixels
    assert (changed.mean, changed.channel_order) == ((103.53, 116.28, 123.675), "BGR")
    assert create_backbone("resnet20", pixels=Pixels(size=64)).pixels == Pixels(size=64)


def test_a_backbone_must_say_how_it_computes_and_how_wide_it_is() -> None:
    with pytest.raises(NotImplementedError, match="has no `forward`"):
        Backbone(3, Pixels())(torch.zeros(1, 3, 2, 2))
    with pytest.raises(ValueError, match="positive integer, got 0"):
        Backbone(0, Pixels())


@pytest.mark.parametrize(
    ("name", "options", "foreign"),
    [
        ("small_cnn", {"width": 8, "weights": "f", "pretrained": True, "img_size": 64}, ["pretrained", "img_size"]),
        ("timm/test_resnet", {"pretrained": True, "img_size": 64, "layers": [1], "pixels": {}}, ["img_size", "layers"]),
        ("timm/test_vit", {"img_size": 64, "layers": [1], "flavour": "x", "embed_dim": 7}, ["flavour"]),
    ],
)
def test_options_of_another_backbone_are_named(name: str, options: dict[str, Any], foreign: list[str]) -> None:
    with pytest.raises(ValueError, match=f"{name}.*has no option {', '.join(foreign)};"):
        check_backbone_options(name, options)
