"""Classification: discriminant analysis against SciPy, batches that see every image, the tiny version."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest
import scipy.linalg
import torch
from PIL import Image

from gspool import data
from gspool.experiments import classification, classification_jobs, classification_table
from gspool.experiments.cifar_stand_in import write_cifar100_stand_in
from gspool.experiments.classification_batches import Batches, ClassifierSettings, hold_out
from gspool.experiments.classification_lda import DiscriminantAnalysis
from gspool.experiments.classification_steps import ClassifierSteps, one_cycle
from gspool.experiments.classification_training import PooledClassifier, train_classifier
from gspool.experiments.experiment import NOT_RUN, RunOptions
from gspool.provenance import origin_here, read_result

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
    settings = ClassifierSettings("small_cnn", "gsp", {"prototypes": 2}, {"width": 2}, epochs=8, batch_size=5, lr=0.1)
    learned, held_out = hold_out(train, 0.1)
    assert (len(learned), len(held_out)) == (10, 2)
    found = train_classifier(learned, held_out, test, settings, "cpu")
    assert found.validation == 1.0
    assert not found.captured
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


def test_what_is_held_out_is_not_learned_from_and_every_class_gives_its_share(pictures: Path) -> None:
    images = data.create("folder", pictures, "train")
    learned, held_out = hold_out(images, 0.34)
    seen = [part.images.indices.tolist() for part in (learned, held_out)]
    assert sorted(seen[0] + seen[1]) == list(range(len(images)))
    assert held_out.labels.bincount().tolist() == [2, 2]
    assert hold_out(images, 0.34)[1].images.indices.tolist() == seen[1]
    with pytest.raises(ValueError, match="class 'blue' has 1 training images"):
        hold_out(images.subset([0, *range(6, 12)]), 0.5)


@pytest.mark.parametrize("steps", [1, 7, 40, 1000])
def test_the_cycle_is_that_of_torch(steps: int) -> None:
    optimiser = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], 1.0)
    if steps == 1:
        assert 0 < one_cycle(0, 1, 0.3) <= 0.3
        return
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimiser, 0.3, total_steps=steps, pct_start=0.2, cycle_momentum=False
    )
    for step in range(steps):
        assert one_cycle(step, steps, 0.3) == pytest.approx(optimiser.param_groups[0]["lr"], rel=1e-9)
        optimiser.step()
        if step + 1 < steps:
            schedule.step()


def test_steps_are_those_of_plain_sgd() -> None:
    torch.manual_seed(0)
    pixels, labels = torch.rand(4, 6, 3, 4, 4), torch.randint(3, (4, 6))
    ours = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(48, 3))
    plain = copy.deepcopy(ours)
    steps = ClassifierSteps(ours, 0.5, 1e-2, 4, "32-true", captured=True)
    optimiser = torch.optim.SGD(plain.parameters(), 0.5, momentum=0.9, nesterov=True, weight_decay=1e-2)
    for step in range(4):
        with steps.at_work():
            steps.step(pixels[step], labels[step])
        optimiser.param_groups[0]["lr"] = one_cycle(step, 4, 0.5)
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(plain(pixels[step]), labels[step]).backward()
        optimiser.step()
    torch.testing.assert_close(ours[1].weight, plain[1].weight)
    assert steps.graph is None


@pytest.mark.gpu
@pytest.mark.parametrize("pooling", ["gap", "gsp"])
def test_captured_steps_learn_what_steps_made_one_by_one_learn(pooling: str) -> None:
    generator = torch.Generator("cuda").manual_seed(0)
    pixels = torch.randint(256, (12, 64, 3, 32, 32), generator=generator, dtype=torch.uint8, device="cuda")
    labels = torch.randint(5, (12, 64), generator=generator, device="cuda")
    found = []
    for captured in (True, False):
        torch.manual_seed(0)
        network = PooledClassifier(ClassifierSettings("resnet20", pooling), 5).cuda()
        network = network.to(memory_format=torch.channels_last).train()
        before = network.linear.weight.detach().clone()
        steps = ClassifierSteps(network, 0.05, 5e-4, 12, "bf16-mixed", captured)
        with steps.at_work():
            for each in range(12):
                steps.step(pixels[each], labels[each])
        torch.cuda.synchronize()
        assert (steps.graph is not None) == captured
        found.append(network.linear.weight.detach() - before)
    ours, plain = found
    assert float(plain.norm()) > 0.05
    assert float((ours - plain).norm()) < 0.3 * float(plain.norm())


def test_the_tiny_version_runs_and_is_not_run_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert classification.EXPERIMENT.render(tmp_path) == NOT_RUN
    monkeypatch.setattr(classification, "POOLINGS", {name: classification.POOLINGS[name] for name in ("gap", "gsp")})
    options = RunOptions(results=tmp_path / "r", work=tmp_path / "w", quick=True)
    classification.run(options)
    path = tmp_path / "r" / "classification_small_cnn.json"
    value = read_result(path)["value"]
    assert [run["pooling"] for run in value["runs"]] == ["gap", "gsp"]
    assert value["chosen"] == "gsp"
    assert "| gsp, mu 0.3, epsilon 5 (chosen) |" in classification.rendered(value)
    monkeypatch.setattr(classification_jobs, "train_classifier", None)
    before = read_result(path)["commit"]
    monkeypatch.setattr(classification, "origin_here", lambda *_: {**origin_here(), "commit": "0123456789"})
    classification.run(options)
    assert read_result(path)["value"] == value
    assert read_result(path)["commit"] == before
    page = classification.EXPERIMENT.render(tmp_path / "r")
    assert "small_cnn" in page
    assert "The chosen GSP against average pooling, in pairs by seed: accuracy" in page
    # The paper has no figures for this network.
    assert "paper MAP@R" not in page
    assert classification.EXPERIMENT.verdict is not None
    assert classification.EXPERIMENT.verdict(read_result(path)).holds == "cannot tell"


def classified(accuracy: list[float], alike: list[float], backbone: str = "resnet20") -> dict:
    """Runs of GAP, and of GSP that gains so many points, a seed an entry."""
    runs = []
    for seed, (right, near) in enumerate(zip(accuracy, alike, strict=True)):
        for pooling, factor in (("gap", 0), ("gsp", 1)):
            metrics = {"p@1": 0.5, "map@r": 0.15 + factor * near / 100}
            figures = {"validation": 0.66, "accuracy": 0.67 + factor * right / 100, "metrics": metrics, "entropy": 0.9}
            runs.append({"pooling": pooling, "seed": seed, "lda_dim": 64, **figures})
    return {"data": "cifar100", "backbone": backbone, "held_out": 0.1, "chosen": "gsp", "runs": runs}


@pytest.mark.parametrize(
    ("accuracy", "alike", "holds"),
    [
        ([1.2, 1.3, 1.4], [1.2, 1.3, 1.4], "yes"),
        ([1.2, 1.3, 1.4], [-0.1, 0.0, 0.1], "partly"),
        # No difference is told from 0, but gains as large as the paper's are ruled out.
        ([-0.17, -0.01, 0.16], [-0.3, 0.1, -0.1], "no"),
        ([-1.2, -1.3, -1.4], [-0.1, 0.0, 0.1], "no"),
        ([-3.0, 0.0, 3.0], [-0.1, 0.0, 0.1], "cannot tell"),
        ([0.5], [0.5], "cannot tell"),
    ],
)
def test_the_gain_of_the_paper_is_judged_by_pairs_of_seeds(
    accuracy: list[float], alike: list[float], holds: str
) -> None:
    value = classified(accuracy, alike)
    assert classification_table.seen(value).holds == holds
    assert ("**It is not seen here**" in classification_table.written({"value": value})) == (holds == "no")


def test_deviations_are_those_of_a_sample_in_the_table_and_in_the_headline() -> None:
    value = classified([1.0, 2.0, 4.0], [0.0, 0.0, 0.0])
    expected = f"{69 + 1 / 3:.2f} ± {np.std([1, 2, 4], ddof=1):.2f}"
    assert f"| {expected} |" in classification_table.rendered(value)
    assert classification.headlines(value)[1].ours == expected


@pytest.mark.parametrize("name", [name for name in classification.POOLINGS if name != "gap"])
def test_every_gsp_is_shown_with_the_mu_and_epsilon_it_was_trained_with(name: str) -> None:
    _, options = classification.POOLINGS[name]
    shown = f"gsp, mu {options['mu']:g}, epsilon {options['epsilon']:g}"
    value = classified([1.0], [1.0])
    for run in value["runs"]:
        run["pooling"] = name if run["pooling"] == "gsp" else "gap"
    assert f"| {shown} |" in classification_table.rendered({**value, "chosen": ""})
    assert classification.headlines({**value, "chosen": name})[1].what == f"accuracy, cifar100, resnet20, {shown}"


def test_columns_of_the_paper_stand_only_beside_its_networks() -> None:
    assert "paper" not in classification_table.rendered(classified([1.0], [1.0]))
    shown = classification_table.rendered(classified([1.0], [1.0], "timm/resnetv2_50"))
    assert "| paper MAP@R |" in shown
    assert "76.53" in shown


def test_jobs_side_by_side_find_what_one_finds_alone(tmp_path: Path) -> None:
    root = write_cifar100_stand_in(tmp_path, images=4, test_images=2)
    settings = ClassifierSettings("small_cnn", "gap", {}, {"width": 2}, epochs=1, batch_size=100)
    job = classification_jobs.Job("cifar100", root, True, 0.25, settings, "cpu")
    key = ("gap", 0)
    found: list[dict] = []
    for processes in (1, 2):
        classification_jobs.train_jobs({key: job}, processes, lambda _, each: found.append(each))
    for each in found:
        assert each.pop("seconds") > 0
        each |= each.pop("metrics")
    assert found[0] == pytest.approx(found[1])
