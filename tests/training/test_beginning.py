"""A training from random weights is refused, unless they are intended."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from gspool.training import TrainConfig, fit
from gspool.training.checkpoint import LAST
from gspool.training.presets import PRESETS, preset
from gspool.training.sets import check_beginning
from training.tiny_run import tiny


def configured(backbone: str, options: dict[str, object], from_scratch: bool | None) -> TrainConfig:
    config = tiny()
    config.model.backbone, config.model.backbone_options, config.from_scratch = backbone, options, from_scratch
    return config


@pytest.mark.parametrize(
    ("backbone", "options", "from_scratch", "refused"),
    [
        ("small_cnn", {}, None, False),
        ("resnet20", {}, None, False),
        ("resnet20", {"weights": "a.pth"}, False, False),
        ("bninception", {"weights": "a.pth"}, None, False),
        ("bninception", {}, True, False),
        ("timm/resnet50", {"pretrained": True}, None, False),
        ("timm/resnet50", {"pretrained": False}, None, False),
        ("timm/resnet50", {"checkpoint_path": "a.pth"}, None, False),
        ("bninception", {}, None, True),
        ("bninception", {"weights": None}, None, True),
        ("keras/resnet50", {}, None, True),
        ("timm/resnet50.a1_in1k", {}, None, True),
        ("resnet20", {}, False, True),
    ],
)
def test_random_weights_are_refused_unless_they_are_meant(backbone, options, from_scratch, refused):
    told = r"would begin with random weights.*--model.backbone_options.*--from_scratch"
    with pytest.raises(ValueError, match=told) if refused else nullcontext():
        check_beginning(configured(backbone, options, from_scratch))


@pytest.mark.parametrize("name", [name for name in PRESETS if name.startswith("paper/")])
def test_every_preset_of_the_paper_but_the_classifiers_wants_weights(name):
    config = preset(name)
    if config.loss.name == "cross_entropy":
        check_beginning(config)
        return
    with pytest.raises(ValueError, match="would begin with random weights"):
        check_beginning(config)
    config.model.backbone_options["weights"] = "a.pth"
    check_beginning(config)


def test_a_run_that_has_begun_goes_on(tmp_path):
    # One from before weights were asked for has no word about them in its configuration.
    config = configured("timm/test_vit", {}, None)
    with pytest.raises(ValueError, match="would begin with random weights"):
        fit(config, tmp_path)
    assert not any(tmp_path.iterdir())
    (tmp_path / LAST).write_bytes(b"damaged")
    with pytest.raises(Exception, match=r"last\.pt"):
        fit(config, tmp_path)
