"""Classification of somebody's own pictures: one folder is not taken for another, nor for CIFAR-100."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from gspool.experiments import classification, classification_jobs
from gspool.experiments.classification_training import Classified
from gspool.experiments.experiment import RunOptions
from gspool.experiments.ledger import Ledger
from gspool.provenance import read_result, write_result


class Trainings:
    """In the place of training: it counts, and its accuracy tells which one it was."""

    def __init__(self) -> None:
        self.made = 0

    def __call__(self, *_: object) -> Classified:
        self.made += 1
        return Classified(0.5, self.made / 1000, {"p@1": 0.5, "map@r": 0.2}, 8, 0.9, 1.0, False)


@pytest.fixture
def trainings(monkeypatch: pytest.MonkeyPatch) -> Trainings:
    made = Trainings()
    monkeypatch.setattr(classification_jobs, "train_classifier", made)
    monkeypatch.setattr(classification, "POOLINGS", {name: classification.POOLINGS[name] for name in ("gap", "gsp")})
    return made


def pictures(root: Path, seed: int = 0) -> Path:
    """Write two classes of three images each under train and test."""
    generator = np.random.default_rng(seed)
    for split in ("train", "test"):
        for name in ("ant", "bee"):
            (root / split / name).mkdir(parents=True)
            for number in range(3):
                noise = generator.integers(0, 256, (8 + seed, 8, 3), dtype=np.uint8)
                Image.fromarray(noise).save(root / split / name / f"{number}.png")
    return root


def classify(tmp_path: Path, root: Path, seeds: tuple[int, ...] = (0,), **settings: str) -> None:
    chosen = classification.ClassificationSettings(data="folder", **settings)
    options = RunOptions(root=root, seeds=seeds, results=tmp_path / "r", work=tmp_path / "w", settings=chosen)
    classification.run(options)


def accuracies(tmp_path: Path, root: Path, ending: str = "") -> list[float]:
    images = classification_jobs.fingerprint_of("folder", root)
    assert images is not None
    return figures(tmp_path / "r" / f"classification_folder-{images[:8]}{ending}.json")


def figures(path: Path) -> list[float]:
    return [run["accuracy"] for run in read_result(path)["value"]["runs"]]


def test_other_pictures_are_other_trainings(tmp_path: Path, trainings: Trainings) -> None:
    first, second = pictures(tmp_path / "a" / "images"), pictures(tmp_path / "b" / "images", seed=1)
    classify(tmp_path, first)
    classify(tmp_path, second)
    classify(tmp_path, first)
    assert trainings.made == 4
    # Each has a file of its own, and neither takes the other's place.
    assert len([*(tmp_path / "r").glob("*.json")]) == 2
    assert accuracies(tmp_path, first) == [0.001, 0.002]
    assert accuracies(tmp_path, second) == [0.003, 0.004]
    named = {line.split(" | ")[0] for line in classification.render(tmp_path / "r").split("\n") if "| resnet20" in line}
    assert len(named) == 2


def test_the_same_pictures_elsewhere_are_the_same(tmp_path: Path, trainings: Trainings) -> None:
    classify(tmp_path, pictures(tmp_path / "here"))
    shutil.copytree(tmp_path / "here", tmp_path / "there" / "copied")
    classify(tmp_path, tmp_path / "there" / "copied")
    assert trainings.made == 2
    # One of them gets another class, and nothing else changes.
    shutil.copytree(tmp_path / "here", tmp_path / "moved")
    (tmp_path / "moved/train/ant/0.png").rename(tmp_path / "moved/train/bee/3.png")
    classify(tmp_path, tmp_path / "moved")
    assert trainings.made == 4


def test_what_was_measured_on_cifar_100_stays(tmp_path: Path, trainings: Trainings) -> None:
    path = tmp_path / "r" / "classification.json"
    write_result(path, {"runs": []}, command="gspool reproduce classification", seeds=[])
    before = path.read_bytes()
    classify(tmp_path, pictures(tmp_path / "images"))
    classify(tmp_path, tmp_path / "images", backbone="timm/resnetv2_50")
    assert path.read_bytes() == before
    assert accuracies(tmp_path, tmp_path / "images", "_timm-resnetv2_50") == [0.003, 0.004]


def test_results_of_other_data_are_shown_after_those_that_are_promised(
    tmp_path: Path, trainings: Trainings, project: Path
) -> None:
    classify(tmp_path, pictures(tmp_path / "images"))
    alone = classification.EXPERIMENT.render(tmp_path / "r")
    images = classification_jobs.fingerprint_of("folder", tmp_path / "images")
    assert images is not None
    assert alone.count(f"| folder {images[:8]} | resnet20 |") == 2
    assert "Not run" not in alone
    shutil.copy(project / "results" / "classification.json", tmp_path / "r")
    both = classification.EXPERIMENT.render(tmp_path / "r")
    assert both.endswith(alone)
    assert both.startswith(classification.EXPERIMENT.render(project / "results"))


def test_trainings_on_cifar_100_from_before_are_not_made_again(tmp_path: Path, trainings: Trainings) -> None:
    ledger = Ledger(tmp_path / "classification" / "trainings.jsonl")
    found = {**trainings()._asdict(), "accuracy": 0.67}
    for name, options in (("gap", {}), ("gsp", {"prototypes": 64, "mu": 0.3, "epsilon": 5.0})):
        ledger.put({**BEFORE, "name": name, "pooling": name, "pooling_options": options}, found)
    classification.run(RunOptions(root=tmp_path, seeds=(0,), results=tmp_path / "r", work=tmp_path))
    assert trainings.made == 1
    assert figures(tmp_path / "r" / "classification.json") == [0.67, 0.67]


# What ledgers hold of a training at the usual settings on a CPU, besides its pooling layer.
BEFORE = {
    "data": "cifar100",
    "held_out": 0.1,
    "backbone": "resnet20",
    "backbone_options": {},
    "epochs": 60,
    "batch_size": 512,
    "lr": 0.4,
    "weight_decay": 5e-4,
    "precision": "32-true",
    "workers": 8,
    "seed": 0,
    "captured": True,
}


def test_a_run_of_a_few_seeds_drops_none(tmp_path: Path, trainings: Trainings) -> None:
    root = pictures(tmp_path / "images")
    classify(tmp_path, root, seeds=(2,))
    classify(tmp_path, root, seeds=(0,))
    assert accuracies(tmp_path, root) == [0.003, 0.004, 0.001, 0.002]
    shutil.rmtree(tmp_path / "w")
    with pytest.raises(ValueError, match="would drop 2"):
        classify(tmp_path, root, seeds=(0,))
    assert trainings.made == 4
