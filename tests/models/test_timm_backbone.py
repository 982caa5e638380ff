from __future__ import annotations

import shutil
from pathlib import Path

import huggingface_hub
import pytest
import timm
import torch
from huggingface_hub.errors import LocalEntryNotFoundError
from safetensors.torch import save_file
from torch import nn

from gspool.models import create_backbone, hub
from gspool.models.hub import available_backbone, cached_backbones
from gspool.models.timm_backbone import FeatureForm, form_of

# Name, options, image, the map that must come out: convolutions, channels-last windows, tokens of several kinds.
FAMILIES = [
    ("resnet18", {}, (64, 64), (512, 2, 2)),
    ("resnet18", {}, (65, 33), (512, 3, 2)),
    ("efficientnet_b0", {}, (64, 64), (1280, 2, 2)),
    ("convnext_atto", {}, (64, 96), (320, 2, 3)),
    ("mobilenetv3_small_050", {}, (64, 64), (288, 2, 2)),
    ("vit_tiny_patch16_224", {"img_size": 64}, (64, 64), (192, 4, 4)),
    ("vit_tiny_patch16_224", {"dynamic_img_size": True}, (64, 96), (192, 4, 6)),
    ("test_vit3", {"img_size": 64}, (64, 64), (96, 4, 4)),
    ("deit_tiny_distilled_patch16_224", {"img_size": 64}, (64, 64), (192, 4, 4)),
    ("swin_tiny_patch4_window7_224", {"img_size": 64, "window_size": 2}, (64, 64), (768, 2, 2)),
    ("mixer_s32_224", {"img_size": 64}, (64, 64), (512, 2, 2)),
    ("xcit_nano_12_p16_224", {}, (224, 224), (128, 14, 14)),
    ("resnetv2_50", {}, (64, 64), (2048, 2, 2)),
    ("tf_efficientnetv2_b3", {}, (64, 64), (1536, 2, 2)),
]


@pytest.mark.parametrize(("name", "options", "size", "shape"), FAMILIES)
def test_every_family_gives_a_map_of_its_announced_width(
    name: str, options: dict, size: tuple[int, int], shape: tuple[int, int, int]
) -> None:
    backbone = create_backbone(f"timm/{name}", **options).eval()
    with torch.no_grad():
        features = backbone(torch.randn(2, 3, *size))
    assert features.shape == (2, *shape)
    assert backbone.channels == shape[0]


@pytest.mark.parametrize(
    "name", ["vit_tiny_patch16_224", "deit_tiny_distilled_patch16_224", "vit_small_patch14_reg4_dinov2"]
)
def test_class_and_register_tokens_are_left_out(name: str) -> None:
    backbone = create_backbone(f"timm/{name}", img_size=56 if "14" in name else 64).eval()
    prefix = {"vit_tiny_patch16_224": 1, "deit_tiny_distilled_patch16_224": 2}.get(name, 5)
    pixels = torch.randn(1, 3, *backbone.pixels.crop)
    with torch.no_grad():
        tokens = backbone.network.forward_features(pixels)
        features = backbone(pixels)
    # Row by row: token k stands at row k // w, column k % w.
    width = features.shape[3]
    assert tokens.shape[1] == prefix + features.shape[2] * width
    for k in range(features.shape[2] * width):
        assert torch.equal(features[0, :, k // width, k % width], tokens[0, prefix + k])


def test_a_place_in_the_image_is_a_place_in_the_map() -> None:
    backbone = create_backbone("timm/test_vit", img_size=64).eval()
    blank = torch.zeros(1, 3, 64, 64)
    marked = blank.clone()
    marked[:, :, 32:48, 0:16] = 3.0  # patch of row 2, column 0
    with torch.no_grad():
        moved = (backbone(marked) - backbone(blank)).norm(dim=1)[0]
    assert divmod(int(moved.argmax()), 4) == (2, 0)


def test_channels_last_maps_are_turned() -> None:
    backbone = create_backbone("timm/swin_tiny_patch4_window7_224", img_size=64, window_size=2).eval()
    pixels = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        assert torch.equal(backbone(pixels).permute(0, 2, 3, 1), backbone.network.forward_features(pixels))


@pytest.mark.parametrize(
    "name", ["convnext_atto", "mobilenetv3_small_050", "test_vit", "efficientnet_b0", "hgnetv2_b0"]
)
def test_no_parameter_is_without_a_gradient(name: str) -> None:
    # A parameter without a gradient stops distributed training; timm keeps parts of its heads.
    backbone = create_backbone(f"timm/{name}")
    backbone(torch.randn(2, 3, *((160, 160) if name == "test_vit" else (64, 64)))).square().sum().backward()
    assert [name for name, parameter in backbone.named_parameters() if parameter.grad is None] == []


def test_pixels_are_timms_record() -> None:
    record = timm.create_model("resnet18").pretrained_cfg
    pixels = create_backbone("timm/resnet18").pixels
    assert (pixels.mean, pixels.std, pixels.channel_order) == (record["mean"], record["std"], "RGB")
    assert (pixels.crop, pixels.resize) == ((224, 224), int(224 / record["crop_pct"]))
    assert create_backbone("timm/test_vit", img_size=64).pixels.crop == (64, 64)


def test_weights_of_a_timm_classifier_load_without_its_head(tmp_path: Path) -> None:
    classifier = timm.create_model("convnext_atto").eval()
    save_file(classifier.state_dict(), tmp_path / "convnext.safetensors")
    backbone = create_backbone("timm/convnext_atto", weights=tmp_path / "convnext.safetensors").eval()
    pixels = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        assert torch.equal(backbone(pixels), classifier.forward_features(pixels))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the hub with one backbone, on a machine without a network."""
    snapshot = tmp_path / "models--timm--resnet34.a1_in1k" / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (snapshot / "model.safetensors").write_bytes(b"")
    (tmp_path / "models--timm--resnet50.a1_in1k").mkdir()
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    return tmp_path


WAYS = "--model.backbone_options.weights FILE.*--model.backbone_options.pretrained false"


def test_weights_that_cannot_be_downloaded_are_refused_with_the_ways_out(cache: Path) -> None:
    assert cached_backbones() == ["timm/resnet34.a1_in1k"]
    with pytest.raises(ConnectionError, match=r"timm/resnet18 .*cannot be reached.*timm/resnet34.a1_in1k"):
        create_backbone("timm/resnet18", pretrained=True)
    assert available_backbone("timm/resnet18") == "timm/resnet34.a1_in1k"
    assert available_backbone("timm/resnet34") == "timm/resnet34"
    assert available_backbone("small_cnn") == "small_cnn"
    # The weights of some backbones of timm lie in repositories of other owners.
    (cache / "models--timm--resnet34.a1_in1k").rename(cache / "models--naver-ai--rdnet_tiny.nv_in1k")
    assert available_backbone("timm/rdnet_tiny") == "timm/rdnet_tiny"
    shutil.rmtree(cache)
    assert cached_backbones() == []
    with pytest.raises(ConnectionError, match=WAYS):
        available_backbone("timm/resnet18")


def test_a_hub_that_cannot_be_reached_costs_one_question(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def unreachable(address: str, timeout: float) -> None:
        asked.append((address, timeout))
        raise OSError("no route to host")

    monkeypatch.setattr(hub, "get_hf_file_metadata", unreachable)
    with pytest.raises(ConnectionError, match="no route to host"):
        create_backbone("timm/resnet18", pretrained=True)
    [(address, timeout)] = asked
    assert "timm/resnet18.a1_in1k" in address
    assert timeout <= 5


def test_a_download_that_breaks_off_is_refused_with_the_ways_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise LocalEntryNotFoundError("Cannot reach the hub.\nPlease check your connection.")

    monkeypatch.setattr(timm, "create_model", broken)
    monkeypatch.setattr(hub, "get_hf_file_metadata", lambda *_, **__: None)
    with pytest.raises(ConnectionError, match=rf"^the weights of timm/resnet18 could not be downloaded.*{WAYS}"):
        create_backbone("timm/resnet18", pretrained=True)
    # Without a download it is another error.
    with pytest.raises(LocalEntryNotFoundError):
        create_backbone("timm/resnet18")


def test_beside_a_file_of_weights_nothing_is_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    classifier = timm.create_model("test_resnet")
    save_file(classifier.state_dict(), tmp_path / "resnet.safetensors")
    monkeypatch.setattr(timm.models._builder, "load_pretrained", lambda *_, **__: pytest.fail("weights were fetched"))
    backbone = create_backbone("timm/test_resnet", pretrained=True, weights=tmp_path / "resnet.safetensors")
    assert torch.equal(next(backbone.parameters()), next(classifier.parameters()))


def test_images_of_another_size_are_refused_with_the_way_out() -> None:
    backbone = create_backbone("timm/vit_tiny_patch16_224")
    with pytest.raises(ValueError, match=r"takes images of 224 x 224 pixels, got 64 x 32; .*img_size=\(64, 32\)"):
        backbone(torch.zeros(1, 3, 64, 32))


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("timm/resnet5", {}, r"no model 'resnet5'; did you mean .*timm/resnet50"),
        ("timm/resnet18.no_such", {}, "no weights 'no_such' of resnet18; it has .*a1_in1k"),
        ("timm/resnet18", {"num_classes": 10}, "num_classes cannot be set"),
        ("timm/resnet18", {"colour": 1}, "does not take these options"),
        ("timm/pit_ti_224", {}, "no single feature map to pool"),
        ("timm/crossvit_tiny_240", {}, "no single feature map to pool"),
        ("timm/resnet18", {"layers": [0, 1]}, "layers are blocks of a vision transformer.* timm/resnet18 is none"),
        ("timm/test_convnext", {"layers": [-1]}, "timm/test_convnext is none"),
        ("timm/test_vit", {"layers": [0, 6]}, r"6 blocks, so layers lie from 0 to 5, or from -6 to -1; got \[6\]"),
        ("timm/test_vit", {"layers": [-7]}, r"got \[-7\]"),
        ("timm/test_vit", {"layers": [5, -1]}, r"names a block twice: \[5, -1\] are the blocks \[5, 5\]"),
        ("timm/test_vit", {"layers": []}, r"a list of block indices such as \[2, 5\], got \[\]"),
        ("timm/test_vit", {"layers": [True]}, "a list of block indices"),
        ("timm/test_vit", {"layers": 2}, "a list of block indices"),
    ],
)
def test_what_cannot_be_made_is_refused_in_words(name: str, options: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        create_backbone(name, **options)


class Announced(nn.Module):
    num_features = 6
    num_prefix_tokens = 1


def test_tokens_without_a_grid_stay_tokens() -> None:
    tokens = torch.randn(2, 8, 6)
    form = form_of(Announced(), (1, 8, 6), (64, 96))
    assert form == FeatureForm("tokens", 6, 1, None)
    assert torch.equal(form.as_map(tokens, (64, 96)), tokens[:, 1:])
    # A grid is known, but an image of this size does not give that many tokens.
    assert FeatureForm("tokens", 6, 1, (16.0, 16.0)).as_map(tokens, (64, 64)).shape == (2, 7, 6)


@pytest.mark.parametrize("name", ["test_vit", "test_vit2", "vit_small_patch14_reg4_dinov2", "beit_base_patch16_224"])
def test_layers_concatenate_the_normalised_tokens_of_blocks(name: str) -> None:
    options = {"depth": 3, "embed_dim": 96, "num_heads": 3} if "_patch" in name else {}
    backbone = create_backbone(f"timm/{name}", layers=[1, -1], **options).eval()
    plain = create_backbone(f"timm/{name}", **options).eval()
    plain.load_state_dict(backbone.state_dict())
    seen = []
    for block in plain.network.blocks:
        block.register_forward_hook(lambda module, inputs, output: seen.append(plain.network.norm(output)))
    pixels = torch.randn(2, 3, *plain.pixels.crop)
    with torch.no_grad():
        found, expected = backbone.features(pixels), plain.features(pixels)
    assert backbone.channels == found.map.shape[1] == 2 * plain.channels
    first, last = found.map.chunk(2, dim=1)
    torch.testing.assert_close(last, expected.map)
    torch.testing.assert_close(first.flatten(2).transpose(1, 2), seen[1][:, plain.form.prefix :])
    if expected.class_token is None:
        assert found.class_token is None
    else:
        torch.testing.assert_close(found.class_token, torch.cat((seen[1][:, 0], expected.class_token), dim=1))


def test_blocks_after_the_last_layer_are_removed_also_with_a_file_of_weights(tmp_path: Path) -> None:
    classifier = timm.create_model("test_vit")
    save_file(classifier.state_dict(), tmp_path / "vit.safetensors")
    backbone = create_backbone("timm/test_vit", layers=[1, 0], weights=tmp_path / "vit.safetensors")
    assert len(backbone.network.blocks) == 2
    assert torch.equal(backbone.network.blocks[1].mlp.fc1.weight, classifier.blocks[1].mlp.fc1.weight)
    backbone(torch.randn(2, 3, 160, 160)).square().sum().backward()
    assert [name for name, parameter in backbone.named_parameters() if parameter.grad is None] == []
