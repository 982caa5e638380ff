"""Classification: discriminant analysis against SciPy, batches that see every image, tables, the tiny version."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.linalg
import torch
from PIL import Image

from gspool import data
from gspool.experiments import classification, commands
from gspool.experiments.classification import (
    DiscriminantAnalysis,
    StreamedClassification,
    hold_out,
)
from gspool.experiments.experiment import RunOptions
from gspool.provenance import read_result
from gspool.training.classify import ClassificationConfig


def labelled(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    labels = generator.permutation(np.repeat(np.arange(4), [9, 5, 12, 7]))
    return generator.normal(size=(33, 6)) + 2 * generator.normal(size=(4, 6))[labels], labels


def test_directions_are_the_generalised_eigenvectors_of_scatter() -> None:
    features, labels = labelled()
    analysis = DiscriminantAnalysis(4, 6, ridge=1e-2)
    for part in np.array_split(np.arange(33), 5):
        analysis.add(torch.tensor(features[part]), torch.tensor(labels[part]))
    found = analysis.directions(10).numpy()
    assert found.shape == (6, 3)
    mean = features.mean(0)
    within, between = np.zeros((6, 6)), np.zeros((6, 6))
    for label in range(4):
        own = features[labels == label]
        within += (own - own.mean(0)).T @ (own - own.mean(0)) / 33
        between += len(own) / 33 * np.outer(own.mean(0) - mean, own.mean(0) - mean)
    within += 1e-2 * np.trace(within) / 6 * np.eye(6)
    values, vectors = scipy.linalg.eigh(between, within)
    for column, vector in zip(found.T, vectors.T[::-1][:3], strict=True):
        assert abs(column @ within @ vector) == pytest.approx(1.0, abs=1e-8)
    assert column @ between @ column == pytest.approx(values[-3])


def test_features_that_never_vary_do_no_harm() -> None:
    features, labels = labelled()
    features[:, 2] = 7.0
    analysis = DiscriminantAnalysis(4, 6)
    analysis.add(torch.tensor(features), torch.tensor(labels))
    assert torch.isfinite(analysis.directions(3)).all()


def pictures(root: Path, seed: int = 0, train: int = 6) -> Path:
    """Write images in ImageNet's layout: folders of classes under train and test, of two colours."""
    generator = np.random.default_rng(seed)
    for split, count in (("train", train), ("test", 3)):
        for name, colour in (("blue", (20, 40, 200)), ("red", (200, 40, 20))):
            folder = root / split / name
            folder.mkdir(parents=True)
            for number in range(count):
                noise = generator.integers(0, 40, (70 + seed, 80, 3)) + np.array(colour)
                Image.fromarray(noise.clip(0, 255).astype(np.uint8)).save(folder / f"{number}.png")
    return root


def asked(**changes: Any) -> dict[str, Any]:
    usual = {"pooling": "gsp", "seed": 0, "data": "folder", "images": None, "backbone": "small_cnn", "epochs": 8}
    return {**usual, "batch_size": 5, "lr": 0.1, "held_out": 0.1, **changes}


def test_images_in_folders_are_classified_and_a_training_goes_on(tmp_path: Path) -> None:
    root = pictures(tmp_path / "images")
    cut, whole = (partial(classification.train, root, False, tmp_path / name, "cpu", 0) for name in "ab")
    assert cut(asked(), 1e-9) is None
    found, expected = cut(asked()), whole(asked())
    assert found is not None
    assert expected is not None
    assert {**found, "seconds": 0} == {**expected, "seconds": 0}
    assert (found["validation"], found["accuracy"], found["metrics"]["p@1"]) == (1.0, 1.0, 1.0)
    assert found["lda_dim"] == 1
    assert 0 < found["entropy"] <= 1


def test_streamed_batches_are_whole_and_a_function_of_the_step(tmp_path: Path) -> None:
    images = data.create("folder", pictures(tmp_path), "train")
    config = ClassificationConfig(batch_size=5)
    task = StreamedClassification(torch.nn.Linear(1, 1), images, config, seed=0, size=64, workers=0)
    assert task.steps_per_epoch == 2
    whole = [*task.batches(0, 5)]
    assert [len(batch.labels) for batch in whole] == [5] * 5
    assert whole[0].images.shape == (5, 3, 64, 64)
    for one, other in zip(whole[3:], task.batches(3, 5), strict=True):
        assert torch.equal(one.images, other.images)
        assert torch.equal(one.labels, images.labels[one.rows])
    # The order of a second epoch is another.
    assert not torch.equal(torch.cat([each.rows for each in whole[:2]]), torch.cat([each.rows for each in whole[2:4]]))


def test_what_is_held_out_is_not_learned_from_and_every_class_gives_its_share(tmp_path: Path) -> None:
    images = data.create("folder", pictures(tmp_path), "train")
    learned, held_out = hold_out(images, 0.34)
    seen = [part.images.indices.tolist() for part in (learned, held_out)]
    assert sorted(seen[0] + seen[1]) == list(range(len(images)))
    assert held_out.labels.bincount().tolist() == [2, 2]
    assert hold_out(images, 0.34)[1].images.indices.tolist() == seen[1]
    with pytest.raises(ValueError, match="'blue' has 1"):
        hold_out(images.subset([0, *range(6, 12)]), 0.5)


class Trainings:
    """In the place of training: it counts, and its accuracy tells which one it was."""

    def __init__(self) -> None:
        self.made = 0

    def __call__(self, *_: object) -> dict[str, Any]:
        self.made += 1
        figures = {"validation": 0.5, "accuracy": self.made / 1000, "metrics": {"p@1": 0.5, "map@r": 0.2}}
        return {**figures, "lda_dim": 8, "entropy": 0.9, "seconds": 1.0}


@pytest.fixture
def trainings(monkeypatch: pytest.MonkeyPatch) -> Trainings:
    made = Trainings()
    monkeypatch.setattr(classification, "train", made)
    monkeypatch.setattr(classification, "POOLINGS", {name: classification.POOLINGS[name] for name in ("gap", "gsp")})
    return made


def classify(tmp_path: Path, root: Path, seeds: tuple[int, ...] = (0,), **settings: str) -> list[float]:
    """Run the experiment on images in folders, and return the accuracies that were written."""
    chosen = classification.ClassificationSettings(data="folder", **settings)
    classification.run(RunOptions(root=root, seeds=seeds, results=tmp_path / "r", work=tmp_path / "w", settings=chosen))
    backbone = "" if chosen.backbone == "resnet20" else f"_{chosen.backbone.replace('/', '-')}"
    images = classification.fingerprint_of("folder", root)
    path = tmp_path / "r" / f"classification_folder-{images[:8]}{backbone}.json"
    return [run["found"]["accuracy"] for run in read_result(path)["value"]["runs"]]


def test_other_images_are_other_trainings_and_the_same_elsewhere_are_not(tmp_path: Path, trainings: Trainings) -> None:
    first, second = pictures(tmp_path / "a"), pictures(tmp_path / "b", seed=1)
    assert classify(tmp_path, first) == [0.001, 0.002]
    assert classify(tmp_path, second) == [0.003, 0.004]
    shutil.copytree(first, tmp_path / "copied")
    assert classify(tmp_path, tmp_path / "copied") == [0.001, 0.002]
    # One image gets another class, and nothing else changes.
    (tmp_path / "copied/train/blue/0.png").rename(tmp_path / "copied/train/red/9.png")
    assert classify(tmp_path, tmp_path / "copied") == [0.005, 0.006]


def test_published_runs_are_left_alone_and_not_made_again(tmp_path: Path, trainings: Trainings, project: Path) -> None:
    path = tmp_path / "r" / "classification.json"
    path.parent.mkdir()
    shutil.copy(project / "results" / "classification.json", path)
    before = path.read_bytes()
    assert classify(tmp_path, pictures(tmp_path / "images"), backbone="timm/resnetv2_50") == [0.001, 0.002]
    assert path.read_bytes() == before
    classification.run(RunOptions(root=tmp_path, results=path.parent, work=tmp_path / "w"))
    assert trainings.made == 2


def test_the_papers_figures_stand_beside_its_own_networks_only(project: Path) -> None:
    record = read_result(project / "results" / "classification.json")
    assert "paper" not in classification.accuracy_table(record)
    record["value"]["backbone"] = "timm/resnetv2_50"
    assert "76.53" in classification.accuracy_table(record)


def test_a_tiny_run_is_written_and_not_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(classification, "POOLINGS", {name: classification.POOLINGS[name] for name in ("gap", "gsp")})
    words = ["classification", "--quick", "--device", "cpu", "--work", str(tmp_path)]
    assert commands.run("reproduce", words) == 0
    path = tmp_path / "quick" / "results" / "classification_small_cnn.json"
    value = read_result(path)["value"]
    assert [run["asked"]["pooling"] for run in value["runs"]] == ["gap", "gsp"]
    assert value["chosen"] == "gsp"
    monkeypatch.setattr(classification, "train", None)
    assert commands.run("reproduce", words) == 0
    assert read_result(path)["value"] == value
