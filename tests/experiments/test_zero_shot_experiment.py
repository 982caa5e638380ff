"""Zero-shot prediction on CIFAR-10: what is described, what is predicted, what is said."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from gspool.experiments import commands, zero_shot, zero_shot_section
from gspool.experiments.cifar_pretraining import PretrainingSettings
from gspool.experiments.cifar_stand_in import write_cifar10_stand_in
from gspool.experiments.collage.maps import Splits
from gspool.experiments.collage.models import MapHead
from gspool.experiments.experiment import NOT_RUN
from gspool.experiments.resident import ResidentSet
from gspool.experiments.zero_shot_training import (
    ZeroShotTraining,
    cifar10_maps,
    describe,
    settings_of,
    train_zero_shot,
)
from gspool.models.backbone import Backbone
from gspool.models.pixels import Pixels
from gspool.provenance import read_result


class Colours(Backbone):
    """The image itself, coarser, as its features."""

    def __init__(self) -> None:
        super().__init__(channels=3, pixels=Pixels(size=32, resize=32))

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.avg_pool2d(pixels, 8)


@pytest.fixture(scope="module")
def maps(tmp_path_factory: pytest.TempPathFactory) -> Splits:
    return cifar10_maps(Colours(), write_cifar10_stand_in(tmp_path_factory.mktemp("cifar"), images=4), "cpu")


def test_a_tenth_of_the_training_images_is_watched_and_none_is_in_both(maps: Splits) -> None:
    assert [len(part) for part in maps] == [180, 20, 80]
    assert maps.validation.labels.bincount().tolist() == [2] * 10
    train = {tuple(row) for row in maps.train.pixels.flatten(1).tolist()}
    assert not train & {tuple(row) for row in maps.validation.pixels.flatten(1).tolist()}


def test_every_batch_holds_all_classes(maps: Splits) -> None:
    settings = settings_of(ZeroShotTraining(), len(maps.train))
    assert (settings.data.classes_per_batch, settings.data.images_per_class) == (10, 6)
    assert settings.loss.name == "pnca"
    assert settings.trainer.max_steps == 3_000


@pytest.mark.parametrize("zsr", [0.0, 0.5])
def test_a_training_gives_figures_of_a_thousand_splits(maps: Splits, zsr: float) -> None:
    found = train_zero_shot(ZeroShotTraining(zsr=zsr, steps=12, images_per_class=4, dim=16), maps, "cpu")
    assert found["chance"] == pytest.approx(0.2)
    # The stand-in has a colour a class: the head tells them apart, and the rank of five is never below chance by much.
    assert found["map@r"] > 0.3
    for kind in ("l2", "cosine"):
        assert 1 / 5 <= found[f"map_{kind}"] <= 1
        assert found[f"accuracy_{kind}"] <= found[f"map_{kind}"]
    histograms = torch.tensor(found["histograms"])
    assert histograms.shape == (10, 8)
    torch.testing.assert_close(histograms.sum(1), torch.ones(10), atol=1e-3, rtol=0)


def test_attributes_and_embeddings_are_those_of_the_model_in_the_order_of_the_images(maps: Splits) -> None:
    torch.manual_seed(0)
    model = MapHead(3, "gsp", 8, prototypes=4)
    seen = describe(model, maps.test, batch_size=7)
    alone = model.embed(maps.test.pixels[13:14])
    torch.testing.assert_close(seen.embeddings[13:14], alone.embedding.detach())
    torch.testing.assert_close(seen.attributes[13:14], alone.attributes.detach())


def test_a_layer_without_attributes_is_refused(maps: Splits) -> None:
    with pytest.raises(ValueError, match="no attributes"):
        describe(MapHead(3, "gmp", 8), ResidentSet.of(maps.test.pixels[:2], maps.test.labels[:2]))


def zero_shot_record(l2: list[float], cosine: list[float], embedding: list[float]) -> dict:
    """Runs whose arm with the regularisation differs by so many points, a seed an entry."""
    runs = {}
    for seed, gains in enumerate(zip(l2, cosine, embedding, strict=True)):
        for arm, factor in (("without", 0), ("with", 1)):
            figures = {name: 0.5 + factor * gain / 100 for name, gain in zip(NAMES, gains, strict=True)}
            runs[f"{arm}, seed {seed}"] = figures
    return {"seeds": list(range(len(l2))), "value": {"runs": runs}}


NAMES = ("map_l2", "map_cosine", "map@r")


@pytest.mark.parametrize(
    ("l2", "cosine", "holds", "said"),
    [
        ([5.0, 5.5, 6.0], [4.0, 4.5, 5.0], "yes", "so do we"),
        ([5.0, 5.5, 6.0], [-4.0, 0.0, 5.0], "partly", "we do in part"),
        ([-5.0, -5.5, -6.0], [-4.0, 0.0, 5.0], "no", "we do not"),
        ([-5.0, 0.0, 6.0], [-4.0, 0.0, 5.0], "cannot tell", "here it cannot be told from 0"),
    ],
)
def test_a_gain_is_one_beyond_its_interval_and_its_cost_is_told(
    l2: list[float], cosine: list[float], holds: str, said: str
) -> None:
    record = zero_shot_record(l2, cosine, [-3.0, -3.2, -3.4])
    assert zero_shot_section.seen(record).holds == holds
    told = zero_shot_section.compared(record)
    assert (
        f"The paper shows a clear gain; {said}. It costs 3.2 points of MAP@R of the embedding (3 of 3 seeds)." in told
    )
    free = zero_shot_section.compared(zero_shot_record(l2, cosine, [1.0, 1.1, 1.2]))
    assert "MAP@R of the embedding does not suffer" in free


@pytest.mark.parametrize("classes", [2, 5, 7])
def test_the_map_of_guessing_is_that_of_random_distances(classes: int) -> None:
    order = torch.rand(200_000, classes, generator=torch.Generator().manual_seed(0)).argsort(1)
    ranks = (order == 0).int().argmax(1) + 1
    drawn = 100 * float((1 / ranks.double()).mean())
    assert zero_shot_section.chance_of_map(100 / classes) == pytest.approx(drawn, abs=0.3)


def test_the_cost_counts_the_backbone_that_is_trained_first() -> None:
    # So many batches at 2 s each on a core.
    steps = PretrainingSettings().epochs * (50_000 // PretrainingSettings().batch_size)
    assert 2 * steps / 3600 == pytest.approx(5.5, abs=0.2)
    assert "five and a half hours on such a core or two minutes on one H200" in zero_shot.EXPERIMENT.cost


def test_a_tiny_run_is_written_and_shown(tmp_path: Path) -> None:
    assert commands.run("reproduce", ["zero-shot", "--quick", "--device", "cpu", "--work", str(tmp_path)]) == 0
    results = tmp_path / "quick" / "results"
    value = read_result(results / "zero_shot.json")["value"]
    assert [row["regularisation"] for row in value["rows"]] == ["without", "with"]
    page = zero_shot.EXPERIMENT.render(results)
    assert "guessing is right in 20 % and has a MAP of 45.7 %" in page
    assert "(guessing 45.7)" in zero_shot.headlines(value)[0].what
    assert "points of MAP by cosine" in page
    assert "Shown is seed 0, the first." in page
    # One seed tells nothing.
    assert zero_shot.EXPERIMENT.verdict is not None
    assert zero_shot.EXPERIMENT.verdict(read_result(results / "zero_shot.json")).holds == "cannot tell"
    assert (results / "images" / "zero_shot.png").is_file()
    assert zero_shot.EXPERIMENT.render(tmp_path) == NOT_RUN


def test_a_run_of_a_few_seeds_drops_none_and_is_marked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], project: Path
) -> None:
    words = ["zero-shot", "--quick", "--device", "cpu", "--work", str(tmp_path), "--seeds"]
    path = tmp_path / "quick" / "results" / "zero_shot.json"
    assert commands.run("reproduce", [*words, "5"]) == 0
    row = read_result(path)["value"]["rows"][0]
    assert [row[name] for name in row if name.endswith("std")] == [None] * 4
    page = zero_shot.EXPERIMENT.render(path.parent)
    assert page.startswith("**Not whole yet.** Missing: 11 of 12 seeds (0, 1, 2, 3, 4, 6, 7, 8, 9, 10, 11); ")
    assert "seed 5 alone" in page
    assert "± 0.0" not in page
    assert zero_shot.headlines(read_result(path)["value"])[0].ours.endswith("(one seed)")
    assert commands.run("reproduce", [*words, "3"]) == 0
    assert read_result(path)["seeds"] == [3, 5]
    assert "mean ± std over seeds 3, 5;" in zero_shot.EXPERIMENT.render(path.parent)
    (tmp_path / "quick" / "zero_shot" / "trainings.jsonl").unlink()
    before = path.read_bytes()
    assert commands.run("reproduce", [*words, "3"]) == 1
    assert "would drop 5" in capsys.readouterr().err
    assert path.read_bytes() == before
    assert zero_shot.EXPERIMENT.unfinished(project / "results") == ""
