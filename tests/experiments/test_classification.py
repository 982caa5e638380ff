"""Classification: discriminant analysis against SciPy, batches that see every image, the tiny version."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import scipy.linalg
import torch
from PIL import Image

from gspool import data
from gspool.experiments import classification
from gspool.experiments.certificate import read_result
from gspool.experiments.classification_lda import DiscriminantAnalysis
from gspool.experiments.classification_training import Batches, ClassifierSettings, train_classifier
from gspool.experiments.experiment import NOT_RUN, RunOptions

pytestmark = pytest.mark.usefixtures("one_thread")


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


def test_a_class_without_features_is_told() -> None:
    analysis = DiscriminantAnalysis(3, 2)
    analysis.add(torch.randn(4, 2), torch.tensor([0, 0, 2, 2]))
    with pytest.raises(ValueError, match="1 classes have no features"):
        analysis.directions(2)
    with pytest.raises(ValueError, match="ridge must be positive"):
        DiscriminantAnalysis(3, 2, ridge=0.0)


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Images in ImageNet's layout: folders of classes under train and test, of two colours."""
    generator = np.random.default_rng(0)
    for split, count in (("train", 6), ("test", 3)):
        for name, colour in (("blue", (20, 40, 200)), ("red", (200, 40, 20))):
            folder = tmp_path / split / name
            folder.mkdir(parents=True)
            for number in range(count):
                noise = generator.integers(0, 40, (70, 80, 3)) + np.array(colour)
                Image.fromarray(noise.clip(0, 255).astype(np.uint8)).save(folder / f"{number}.png")
    return tmp_path


def test_images_in_folders_are_classified(pictures: Path) -> None:
    train, test = (data.create("folder", pictures, split) for split in ("train", "test"))
    settings = ClassifierSettings("small_cnn", "gsp", {"prototypes": 2}, {"width": 2}, epochs=6, batch_size=6, lr=0.1)
    found = train_classifier(train, test, settings, "cpu")
    assert found.accuracy == 1.0
    assert found.metrics["p@1"] == 1.0
    assert found.lda_dim == 1
    assert found.entropy is not None
    assert 0 < found.entropy <= 1


def test_evaluation_sees_every_image_once_and_training_only_whole_batches(pictures: Path) -> None:
    images = data.create("folder", pictures, "train")
    batches = Batches(images, ClassifierSettings("small_cnn", "gap", batch_size=5), 64, "cpu")
    assert torch.cat([labels for _, labels in batches.evaluation()]).tolist() == images.labels.tolist()
    assert [len(labels) for _, labels in batches.training(0)] == [5, 5]
    first, again, other = ([pixels for pixels, _ in batches.training(epoch)] for epoch in (0, 0, 1))
    assert all(torch.equal(one, two) for one, two in zip(first, again, strict=True))
    assert not torch.equal(first[0], other[0])


def test_the_tiny_version_runs_and_is_not_run_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert classification.EXPERIMENT.render(tmp_path) == NOT_RUN
    monkeypatch.setattr(classification, "POOLINGS", {name: classification.POOLINGS[name] for name in ("gap", "gsp")})
    options = RunOptions(results=tmp_path / "r", work=tmp_path / "w", quick=True)
    classification.run(options)
    value = read_result(tmp_path / "r" / "classification.json")["value"]
    assert [run["pooling"] for run in value["runs"]] == ["gap", "gsp"]
    monkeypatch.setattr(classification, "train_classifier", None)
    classification.run(options)
    assert read_result(tmp_path / "r" / "classification.json")["value"] == value
    assert "resnet20" in classification.EXPERIMENT.render(tmp_path / "r") or "small_cnn" in classification.rendered(
        value
    )
