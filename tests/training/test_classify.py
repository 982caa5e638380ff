"""The classification task: it learns, it resumes, and its seed decides everything."""

from __future__ import annotations

import pytest
import torch

from gspool.training.checkpoint import LAST, read_checkpoint
from gspool.training.classify import Classification, ClassificationConfig, top_1, train_classifier
from gspool.training.config import ScheduleConfig
from gspool.training.gpu_data import TensorSet
from gspool.training.metrics_log import read_metrics


def stripes(count: int = 120) -> TensorSet:
    """Return noisy images of two classes: bright rows, or bright columns."""
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(80, (count, 3, 8, 8), dtype=torch.uint8, generator=generator)
    labels = torch.arange(count) % 2
    pixels[labels == 0, :, ::2] += 120
    pixels[labels == 1, :, :, ::2] += 120
    return TensorSet.of(pixels, labels, transform="shift", options={"shift": 1})


class Network(torch.nn.Sequential):
    def __init__(self, seed: int = 0) -> None:
        torch.manual_seed(seed)
        layers = [torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU(), torch.nn.Flatten()]
        super().__init__(*layers, torch.nn.Dropout(0.1), torch.nn.Linear(4 * 36, 2))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return super().forward(images.float() / 255)


SETTINGS = ClassificationConfig(batch_size=24, lr=0.05)


@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
@pytest.mark.parametrize("schedule", ["one-cycle", "cosine", "constant"])
def test_a_separable_problem_is_learned(optimiser, schedule):
    images, network = stripes(), Network()
    config = ClassificationConfig(24, optimiser, lr=0.01, label_smoothing=0.1)
    before = top_1(network, images)
    outcome = train_classifier(network, images, images, config, epochs=8, schedule=ScheduleConfig(schedule))
    assert outcome.steps == 40
    assert outcome.best_value == top_1(network, images)
    assert outcome.best_value >= max(0.95, before)


def test_the_seed_decides_and_the_global_generator_does_not():
    def weights(seed: int) -> torch.Tensor:
        torch.manual_seed(99 * seed)
        network = Network()
        torch.rand(seed + 3)
        train_classifier(network, stripes(), None, SETTINGS, epochs=2, seed=seed)
        return network[0].weight.detach()

    assert torch.equal(weights(1), weights(1))
    assert not torch.equal(weights(1), weights(2))


def test_a_run_that_stops_goes_on_bit_for_bit(tmp_path, monkeypatch):
    def run(name) -> dict[str, torch.Tensor]:
        network, folder = Network(), tmp_path / name
        folder.mkdir(exist_ok=True)
        often = {"evaluate_epochs": 1, "log_every": 1}
        train_classifier(network, stripes(), stripes(24), SETTINGS, epochs=4, folder=folder, **often)
        return network.state_dict()

    whole, loss = run("whole"), Classification.loss

    def failing(task, batch, step):
        if step == 13:
            raise InterruptedError
        return loss(task, batch, step)

    monkeypatch.setattr(Classification, "loss", failing)
    with pytest.raises(InterruptedError):
        run("parts")
    monkeypatch.undo()
    assert read_checkpoint(tmp_path / "parts" / LAST)["step"] == 10
    parts = run("parts")
    assert all(torch.equal(value, parts[name]) for name, value in whole.items())
    rows, again = (read_metrics(tmp_path / name) for name in ("whole", "parts"))
    for row in (*rows, *again):
        row.pop("steps_per_second", None)
    assert rows == again
    assert [row["step"] for row in rows if "accuracy" in row] == [5, 10, 15, 20]


def test_every_image_comes_once_an_epoch():
    task = Classification(Network(), stripes(), None, SETTINGS, seed=3)
    batches = list(task.batches(0, 10))
    for epoch in (batches[:5], batches[5:]):
        assert sorted(torch.cat([batch.rows for batch in epoch]).tolist()) == list(range(120))
    assert not torch.equal(batches[0].rows, batches[5].rows)
    for batch, expected in zip(task.batches(7, 10), batches[7:], strict=True):
        assert torch.equal(batch.images, expected.images)


def test_too_few_images_are_refused():
    with pytest.raises(ValueError, match="8 images do not fill a batch of 24"):
        Classification(Network(), stripes(8), None, SETTINGS)
