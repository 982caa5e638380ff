"""The backbone of the collage and zero-shot studies: trained once, kept in a file, the same in any process."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from gspool.executor import Failure
from gspool.experiments import cifar
from gspool.experiments.cifar import (
    PretrainingSettings,
    pretrain_missing,
    read_backbone,
    weights_file,
    write_cifar100_stand_in,
)
from gspool.experiments.experiment import RunOptions

QUICK = RunOptions(quick=True)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_cifar100_stand_in(tmp_path_factory.mktemp("cifar"), images=1, test_images=1)


def test_a_backbone_is_trained_once_and_always_the_same(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (known,) = pretrain_missing(["postactivation"], root, tmp_path, QUICK)
    assert (known["flavour"], known["epochs"]) == ("postactivation", 1)
    assert 0 <= known["accuracy"] <= 1
    weights = weights_file(tmp_path, "postactivation")
    first = weights.read_bytes()
    # Weights without a description may be cut short.
    weights.with_suffix(".json").unlink()
    weights.write_bytes(b"cut short")
    (again,) = pretrain_missing(["postactivation"], root, tmp_path, QUICK)
    assert (weights.read_bytes(), again["accuracy"]) == (first, known["accuracy"])
    assert not [*(tmp_path / "trainings").iterdir()]
    monkeypatch.setattr(cifar, "pretrain", None)
    assert pretrain_missing(["postactivation"], root, tmp_path, QUICK) == [again]
    backbone = read_backbone(tmp_path, "postactivation", "cpu")
    assert not backbone.training
    assert backbone(torch.zeros(1, 3, 32, 32)).shape == (1, 64, 8, 8)


def test_a_failure_in_a_process_is_named(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(_: object, tasks: list[PretrainingSettings], *__: object) -> list[tuple[PretrainingSettings, Failure]]:
        return [(task, Failure("out of memory")) for task in tasks]

    monkeypatch.setattr(cifar, "run_tasks", failing)
    with pytest.raises(RuntimeError, match=r"ResNet20 \(postactivation\) failed: out of memory"):
        pretrain_missing(cifar.FLAVOURS, root, tmp_path, QUICK)
