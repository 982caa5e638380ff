from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from gspool.models import Backbone, Embedder, Pixels
from gspool.models.pretrained import GENERATED


def images() -> torch.Tensor:
    return torch.randint(256, (2, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def shaken(model: Embedder) -> Embedder:
    """Move the statistics off their start, so that a lost buffer shows."""
    model.train()
    with torch.no_grad():
        model(images())
    return model.eval()


MODELS = [
    {"backbone": "resnet20", "pooling": "gsp", "dim": 8, "pooling_options": {"prototypes": 3, "mu": 0.4}},
    {"backbone": "resnet20", "pooling": "gsp", "dim": 8, "pooling_options": {"prototypes": 2, "warm_start": 5}},
    {
        "backbone": "resnet20",
        "pooling": "gap",
        "backbone_options": {"flavour": "preactivation-bottleneck", "pixels": {"mean": [0.1, 0.2, 0.3]}},
        "freeze": "batchnorm",
    },
    {"backbone": "timm/test_vit", "pooling": "tfm", "dim": 64, "backbone_options": {"img_size": 32}},
    {"backbone": "timm/test_vit", "pooling": "cls", "dim": 8, "backbone_options": {"img_size": 32, "layers": [-4, 3]}},
    {"backbone": "timm/test_convnext", "pooling": "gap+gmp", "dim": 4, "normalise": False},
]


@pytest.mark.parametrize("settings", MODELS, ids=lambda settings: f"{settings['backbone']}-{settings['pooling']}")
def test_a_saved_model_comes_back_as_it_was(settings: dict, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Embedder(**settings)
    fed = images() if model.settings.normalise else images() / 255
    if model.settings.normalise:
        shaken(model)
    model.eval().save_pretrained(tmp_path / "model")
    again = Embedder.from_pretrained(tmp_path / "model")
    assert not again.training
    assert again.settings == model.settings
    assert again.pixels == model.pixels
    with torch.no_grad():
        before, after = model.embed(fed), again.embed(fed)
    assert torch.equal(before.embedding, after.embedding)
    if before.attributes is not None:
        assert torch.equal(before.attributes, after.attributes)


def test_a_folder_holds_three_readable_files_and_nothing_of_a_crash(tmp_path: Path) -> None:
    model = Embedder("resnet20", pooling="gap", dim=8)
    (tmp_path / ".saving").mkdir()
    (tmp_path / ".saving" / "model.safetensors").write_bytes(b"half")
    model.save_pretrained(str(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["README.md", "config.json", "model.safetensors"]
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["backbone"] == "resnet20"
    assert config["pixels"]["size"] == 32
    assert set(load_file(tmp_path / "model.safetensors")) == set(model.state_dict())
    # Whoever may read one of them may read all.
    assert len({path.stat().st_mode for path in tmp_path.iterdir()}) == 1


def test_saved_preprocessing_holds(tmp_path: Path) -> None:
    Embedder("resnet20", pooling="gap").save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["pixels"]["mean"] = [0.25, 0.5, 0.75]
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert Embedder.from_pretrained(tmp_path).pixels.mean == (0.25, 0.5, 0.75)


def test_the_freeze_of_a_loaded_model_holds(tmp_path: Path) -> None:
    Embedder("resnet20", pooling="gap", freeze="all").save_pretrained(tmp_path)
    again = Embedder.from_pretrained(tmp_path).train()
    assert not any(parameter.requires_grad for parameter in again.backbone.parameters())
    assert not again.backbone.training


class Own(Backbone):
    def __init__(self) -> None:
        super().__init__(channels=4, pixels=Pixels(size=32, resize=32))
        self.first = nn.Conv2d(3, 4, 8, 8)
        self.tied = self.first.weight  # two names for one tensor, which safetensors alone would refuse

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        return self.first(pixels)


def test_a_backbone_of_ones_own_is_asked_for(tmp_path: Path) -> None:
    model = Embedder(Own(), pooling="gap", dim=3)
    model.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"custom backbone; .*backbone=\.\.\."):
        Embedder.from_pretrained(tmp_path)
    again = Embedder.from_pretrained(tmp_path, backbone=Own())
    assert torch.equal(again(images()), model(images()))
    other = Own()
    other.pixels = Pixels(size=64)
    with pytest.raises(ValueError, match=r"was trained on pixels .*'size': 32.*'size': 64"):
        Embedder.from_pretrained(tmp_path, backbone=other)


def test_a_backbone_that_is_not_needed_is_refused(tmp_path: Path) -> None:
    Embedder("resnet20", pooling="gap").save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="has its own backbone 'resnet20'"):
        Embedder.from_pretrained(tmp_path, backbone=Own())


def test_a_folder_with_a_pickle_instead_is_refused(tmp_path: Path) -> None:
    Embedder("resnet20", pooling="gap").save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"no model\.safetensors \(found: .*pytorch_model\.bin\).*never loaded"):
        Embedder.from_pretrained(tmp_path)


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"there is no folder .*absent"):
        Embedder.from_pretrained(tmp_path / "absent")
    with pytest.raises(ValueError, match="there is no folder a/b/c"):
        Embedder.from_pretrained("a/b/c")
    with pytest.raises(ValueError, match="no local folder nobody/nothing, and the Hugging Face hub"):
        Embedder.from_pretrained("nobody/nothing", local_files_only=True, cache_dir=tmp_path)


def test_a_model_that_could_not_be_loaded_again_is_refused_before_anything_is_lost(tmp_path: Path) -> None:
    model = Embedder("timm/test_resnet", pooling="gap", backbone_options={"block_args": {}})
    with pytest.raises(ValueError, match=r"cannot be saved, .*'block_args'"):
        model.save_pretrained(tmp_path)
    assert list(tmp_path.iterdir()) == []
    model = Embedder("resnet20", pooling="gap")
    model.save_pretrained(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    model.settings.pooling_options["device"] = torch.device("cpu")
    with pytest.raises(ValueError, match=r"cannot be saved.*device"):
        model.save_pretrained(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_generated_card_is_renewed_and_an_edited_one_is_kept(tmp_path: Path) -> None:
    model = Embedder("resnet20", pooling="gap")
    model.save_pretrained(tmp_path)
    assert "None were given" in (tmp_path / "README.md").read_text()
    model.save_pretrained(tmp_path, metrics={"p@1": 0.5})
    card = (tmp_path / "README.md").read_text()
    assert "| p@1 | 0.5 |" in card
    (tmp_path / "README.md").write_text(card.replace(GENERATED, "My own words."))
    model.save_pretrained(tmp_path)
    assert "My own words." in (tmp_path / "README.md").read_text()
