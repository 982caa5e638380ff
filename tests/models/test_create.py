from __future__ import annotations

from typing import Any

import pytest
import torch

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
