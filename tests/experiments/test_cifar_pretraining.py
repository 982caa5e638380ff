"""The classifier that the collage study starts from: its augmentation by a loop, its training by what it learns."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from gspool.experiments.cifar_pretraining import (
    LabelledPixels,
    PretrainingSettings,
    classification_accuracy,
    pretrain,
    shifted_and_mirrored,
)
from gspool.experiments.cifar_stand_in import write_cifar100_stand_in
from gspool.experiments.collage import backbones as collage_backbones
from gspool.experiments.collage.backbones import pretrain_missing, read_backbone, weights_file

TINY = PretrainingSettings(epochs=1, batch_size=50, lr=0.1)


def test_every_image_is_some_shift_of_itself_or_of_its_mirror_image() -> None:
    torch.manual_seed(0)
    images = torch.randint(1, 256, (40, 3, 12, 10), dtype=torch.uint8)
    moved = shifted_and_mirrored(images, torch.Generator().manual_seed(1))
    found = set()
    for image, new in zip(images, moved, strict=True):
        for mirrored, source in ((False, image), (True, image.flip(2))):
            frame = torch.zeros(3, 20, 18, dtype=torch.uint8)
            frame[:, 4:16, 4:14] = source
            for top in range(9):
                for left in range(9):
                    if torch.equal(frame[:, top : top + 12, left : left + 10], new):
                        found.add((mirrored, top, left))
                        break
    assert {mirrored for mirrored, _, _ in found} == {False, True}
    assert len(found) > 20


def test_the_same_seed_gives_the_same_weights_and_colours_are_learned() -> None:
    torch.manual_seed(0)
    labels = torch.arange(96) % 2
    pixels = torch.randint(60, (96, 3, 16, 16), dtype=torch.uint8)
    pixels[labels == 1, 0] += 150
    images = LabelledPixels(pixels, labels)
    settings = PretrainingSettings(epochs=4, batch_size=32, lr=0.05)
    first, second = (pretrain(images, images, settings) for _ in range(2))
    assert first.accuracy > 0.9
    assert all(torch.equal(first.weights[name], second.weights[name]) for name in first.weights)


def test_accuracy_counts_and_leaves_the_mode_alone() -> None:
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Identity())
    network.train()
    pixels = torch.eye(4).view(4, 1, 2, 2)[[0, 1, 2, 3, 3]]
    images = LabelledPixels(pixels, torch.tensor([0, 1, 2, 3, 0]))
    assert classification_accuracy(network, images, batch_size=2) == pytest.approx(0.8)
    assert network.training


def test_fewer_images_than_a_batch_are_refused() -> None:
    images = LabelledPixels(torch.zeros(3, 3, 8, 8, dtype=torch.uint8), torch.arange(3))
    with pytest.raises(ValueError, match="3 images do not fill a batch of 512"):
        pretrain(images, images, PretrainingSettings())


def test_a_backbone_is_trained_once_and_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = write_cifar100_stand_in(tmp_path / "data", images=1, test_images=1)
    known = pretrain_missing(("postactivation",), root, tmp_path / "work", "cpu", TINY)
    assert known[0]["flavour"] == "postactivation"
    path = weights_file(tmp_path / "work", "postactivation")
    assert json.loads(path.with_suffix(".json").read_text()) == known[0]
    monkeypatch.setattr(collage_backbones, "pretrain_one", None)
    assert pretrain_missing(("postactivation",), root, tmp_path / "work", "cpu", TINY) == known
    backbone = read_backbone(tmp_path / "work", "postactivation", "cpu")
    assert not backbone.training
    assert backbone(torch.zeros(1, 3, 32, 32)).shape == (1, 64, 8, 8)


def test_both_flavours_are_trained_side_by_side_and_what_breaks_is_told(tmp_path: Path) -> None:
    root = write_cifar100_stand_in(tmp_path / "data", images=1, test_images=1)
    flavours = ("postactivation", "preactivation-bottleneck")
    # The first processor by its number: only plain "cpu" has them made one after the other.
    known = pretrain_missing(flavours, root, tmp_path / "work", "cpu:0", TINY)
    assert [each["flavour"] for each in known] == [*flavours]
    assert known[0]["accuracy"] == pretrain_missing(flavours[:1], root, tmp_path / "alone", "cpu", TINY)[0]["accuracy"]
    with pytest.raises(RuntimeError, match=r"(?s)ResNet20 p.* broke: .*do not fill a batch of 512"):
        pretrain_missing(flavours, root, tmp_path / "broken", "cpu:0", PretrainingSettings())


def test_a_person_sees_the_steps(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    images = LabelledPixels(torch.zeros(8, 3, 8, 8, dtype=torch.uint8), torch.arange(8))
    monkeypatch.setattr("gspool.experiments.crew.bars.on_a_terminal", lambda: True)
    pretrain(images, images, PretrainingSettings(epochs=3, batch_size=4))
    shown = capsys.readouterr().out
    assert "ResNet20, postactivation" in shown
    assert "6/6" in shown
