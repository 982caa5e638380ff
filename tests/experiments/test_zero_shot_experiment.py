"""Zero-shot prediction on CIFAR-10: its data, what a training finds, its tables, its command."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from gspool.experiments import commands, zero_shot
from gspool.experiments.cifar import MapHead, write_cifar10_stand_in
from gspool.experiments.zero_shot import Training, cifar10_maps, describe
from gspool.models.backbone import Backbone
from gspool.models.pixels import Pixels
from gspool.provenance import read_result
from gspool.training.gpu_data import TensorSet


class Colours(Backbone):
    """The image itself, coarser, as its features."""

    def __init__(self) -> None:
        super().__init__(channels=3, pixels=Pixels(size=32, resize=32))

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.avg_pool2d(pixels, 8)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_cifar10_stand_in(tmp_path_factory.mktemp("cifar"), images=4)


@pytest.fixture(scope="module")
def maps(root: Path) -> dict[Any, TensorSet]:
    return cifar10_maps(Colours(), root, "cpu")


def test_a_tenth_of_the_training_images_is_held_out(maps: dict[Any, TensorSet]) -> None:
    assert {split: len(part) for split, part in maps.items()} == {"train": 180, "validation": 20, "test": 80}
    assert maps["validation"].labels.bincount().tolist() == [2] * 10
    train, held = ({tuple(row) for row in maps[split].pixels.flatten(1).tolist()} for split in ("train", "validation"))
    assert not train & held


@pytest.mark.parametrize("zsr", [0.0, 0.5])
def test_a_training_gives_figures_of_a_thousand_splits(maps: dict[Any, TensorSet], zsr: float, tmp_path: Path) -> None:
    asked = vars(Training(zsr=zsr, steps=12, images_per_class=4, dim=16))
    found = zero_shot.train(maps, tmp_path, "cpu", "torch", asked)
    assert found is not None
    assert found["chance"] == pytest.approx(0.2)
    # The stand-in has a colour a class, which the head separates.
    assert found["map@r"] > 0.3
    for kind in ("l2", "cosine"):
        assert 1 / 5 <= found[f"map_{kind}"] <= 1
        assert found[f"accuracy_{kind}"] <= found[f"map_{kind}"]
    histograms = torch.tensor(found["histograms"])
    assert histograms.shape == (10, 8)
    torch.testing.assert_close(histograms.sum(1), torch.ones(10), atol=1e-3, rtol=0)
    assert zero_shot.train(maps, tmp_path, "cpu", "torch", asked, seconds=1e-9) is None


def test_descriptions_are_in_the_order_of_the_images(maps: dict[Any, TensorSet]) -> None:
    torch.manual_seed(0)
    model = MapHead(3, "gsp", 8, prototypes=4)
    attributes, embeddings = describe(model, maps["test"], batch_size=7)
    alone = model.embed(maps["test"].pixels[13:14])
    torch.testing.assert_close(embeddings[13:14], alone.embedding.detach())
    torch.testing.assert_close(attributes[13:14], alone.attributes.detach())


@pytest.mark.parametrize("classes", [2, 5, 7])
def test_the_map_of_guessing_is_that_of_random_distances(classes: int) -> None:
    order = torch.rand(200_000, classes, generator=torch.Generator().manual_seed(0)).argsort(1)
    ranks = (order == 0).int().argmax(1) + 1
    drawn = 100 * float((1 / ranks.double()).mean())
    assert zero_shot.chance_of_map(100 / classes) == pytest.approx(drawn, abs=0.3)


def test_a_tiny_run_is_written_drawn_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["zero-shot", "--quick", "--device", "cpu", "--work", str(tmp_path), "--seeds"]
    assert commands.run("reproduce", [*words, "5"]) == 0
    results = tmp_path / "quick" / "results"
    record = read_result(results / "zero_shot.json")
    assert [row["regularisation"] for row in record["value"]["rows"]] == ["without", "with"]
    assert zero_shot.gain_table(record).count("(one pair)") == 3
    assert (results / "images" / "zero_shot.png").stat().st_size > 5_000
    # What is finished is not trained again, and earlier seeds stay.
    monkeypatch.setattr("gspool.experiments.cifar.pretrain", None)
    assert commands.run("reproduce", [*words, "3"]) == 0
    again = read_result(results / "zero_shot.json")
    assert again["seeds"] == [3, 5]
    assert [run["found"] for run in again["value"]["runs"] if run["asked"]["seed"] == 5] == [
        run["found"] for run in record["value"]["runs"]
    ]
