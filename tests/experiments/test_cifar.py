"""The backbone of the collage and zero-shot studies: trained once, kept in a file, the same in any process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from gspool.executor import Failure
from gspool.experiments import cifar
from gspool.experiments.cifar import (
    PretrainingSettings,
    pretrain,
    pretrain_missing,
    read_backbone,
    write_cifar100_stand_in,
)
from gspool.experiments.experiment import RunOptions

QUICK = RunOptions(quick=True)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_cifar100_stand_in(tmp_path_factory.mktemp("cifar"), images=1, test_images=1)


def test_a_backbone_is_trained_once_and_read_back(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (known,) = pretrain_missing(["postactivation"], root, tmp_path, QUICK)
    assert (known["flavour"], known["epochs"]) == ("postactivation", 1)
    assert 0 <= known["accuracy"] <= 1
    monkeypatch.setattr(cifar, "pretrain", None)
    assert pretrain_missing(["postactivation"], root, tmp_path, QUICK) == [known]
    backbone = read_backbone(tmp_path, "postactivation", "cpu")
    assert not backbone.training
    assert backbone(torch.zeros(1, 3, 32, 32)).shape == (1, 64, 8, 8)


def test_the_same_seed_gives_the_same_weights_and_leaves_no_checkpoints(root: Path, tmp_path: Path) -> None:
    settings = PretrainingSettings(epochs=2, batch_size=50, lr=0.1)
    first, second = (pretrain(root, tmp_path, "cpu", settings) for _ in range(2))
    assert first[0] == second[0]
    assert not [*(tmp_path / "trainings").iterdir()]


def test_weights_without_a_description_are_trained_again(root: Path, tmp_path: Path) -> None:
    (known,) = pretrain_missing(["postactivation"], root, tmp_path, QUICK)
    path = tmp_path / "resnet20-postactivation.json"
    path.unlink()
    path.with_suffix(".safetensors").write_bytes(b"cut short")
    pretrain_missing(["postactivation"], root, tmp_path, QUICK)
    assert json.loads(path.read_text())["accuracy"] == known["accuracy"]
    read_backbone(tmp_path, "postactivation", "cpu")


def test_a_failure_in_a_process_is_named(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(_: object, tasks: list[PretrainingSettings], *__: object) -> list[tuple[PretrainingSettings, Failure]]:
        return [(task, Failure("out of memory")) for task in tasks]

    monkeypatch.setattr(cifar, "run_tasks", failing)
    with pytest.raises(RuntimeError, match=r"ResNet20 \(postactivation\) failed: out of memory"):
        pretrain_missing(cifar.FLAVOURS, root, tmp_path, QUICK)
