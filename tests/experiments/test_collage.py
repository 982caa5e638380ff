"""The collage study: its grid, its data against the data set, its models, its search, its tables, its command."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from gspool import data
from gspool.executor.run_store import RunStore
from gspool.experiments import collage, commands
from gspool.experiments.cifar import (
    FLAVOURS,
    MapHead,
    channel_statistics,
    fit_head,
    weights_file,
    write_cifar100_stand_in,
)
from gspool.experiments.collage import ROWS, paper_tables, tuned_trainings
from gspool.experiments.collage_search import Variant, changed, head_tries, search, single_variants, variants
from gspool.experiments.collage_training import (
    GSP_OPTIONS,
    CollageEmbedder,
    Collages,
    CollageWorker,
    Training,
    collage_maps,
    model_of,
    read_collages,
    redrawn,
    sets_of,
    stitched,
    weight_on_object,
)
from gspool.experiments.experiment import RunOptions
from gspool.models.cifar_resnet import ResNet20
from gspool.provenance import read_result
from gspool.training.gpu_data import TensorSet

CLASSES, CHANNELS = 16, 12
SMALL = {"prototypes": 8, "warm_start": 0}
TABLES = {name: table for name, table in collage.EXPERIMENT.tables.items() if name != "heads"}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_cifar100_stand_in(tmp_path_factory.mktemp("cifar"), images=1, test_images=1)


@pytest.fixture(scope="module")
def collages(root: Path) -> Collages:
    return read_collages(root, "cpu")


def random_maps(seed: int, side: int = 4) -> TensorSet:
    """Maps whose class shows in one quarter, among noise."""
    labels = torch.arange(CLASSES).repeat_interleave(8)
    centres = torch.randn(CLASSES, CHANNELS, generator=torch.Generator().manual_seed(9))
    maps = torch.randn(len(labels), CHANNELS, side, side, generator=torch.Generator().manual_seed(seed))
    half = side // 2
    maps[:, :, :half, :half] = centres[labels][:, :, None, None] + 0.3 * maps[:, :, :half, :half]
    return TensorSet.of(maps.half(), labels)


@pytest.fixture(scope="module")
def maps() -> dict[str, TensorSet]:
    return {split: random_maps(seed) for seed, split in enumerate(("train", "validation", "test"))}


def head(training: Training, maps: dict[str, TensorSet]) -> Any:
    return model_of(training, maps, None, None, "torch")  # type: ignore[arg-type]


def trained(training: Training, maps: dict[str, TensorSet], folder: Path, seconds: float = 0.0) -> tuple[Any, Any]:
    model = head(training, maps)
    config = training.config(len(maps["train"]))
    return model, fit_head(config, training.asked(), folder, "cpu", model, maps, seconds)


def test_stitching_equals_the_data_set(root: Path, collages: Collages) -> None:
    for split, part in collages.sets.items():
        images = data.create("collage", root, split)
        rows = torch.arange(0, len(images), 7)
        made = stitched(collages.tiles, part.pixels[rows, :4])
        assert torch.equal(made, torch.stack([images[int(row)][0] for row in rows]))
        assert torch.equal(part.labels, images.labels)
        assert torch.equal(collages.objects(split), images.foreground)


def test_tiles_of_splits_are_apart_and_sub_classes_can_be_learned(
    collages: Collages, maps: dict[str, TensorSet]
) -> None:
    parts = [each.pixels[:, :4].gather(1, each.pixels[:, 4:]).flatten().tolist() for each in collages.sets.values()]
    parts.append(collages.backgrounds.tolist())
    assert len(set().union(*parts)) == sum(len(set(part)) for part in parts)
    # Every super-class has two classes, and one on validation.
    for split, part in collages.sets.items():
        pairs = set(zip(part.labels.tolist(), collages.sub_classes[split].tolist(), strict=True))
        each = 1 if split == "validation" else 2
        assert len(pairs) == len({inner for _, inner in pairs}) == each * CLASSES
    known = collages._replace(sub_classes={"train": torch.arange(128) // 4})
    sets = sets_of(Training("gap", "pnca", labels="sub-classes"), maps, known)
    assert (sets["train"].num_classes, sets["validation"].num_classes) == (2 * CLASSES, CLASSES)


def test_maps_are_those_of_the_backbone_in_evaluation_mode(root: Path, collages: Collages) -> None:
    torch.manual_seed(0)
    backbone = ResNet20()
    few = collages._replace(
        sets={split: TensorSet.of(part.pixels[:3], part.labels[:3]) for split, part in collages.sets.items()}
    )
    made = collage_maps(backbone, few)["test"]
    picture = data.create("collage", root, "test")[2][0][None]
    mean, std = (torch.tensor(each)[:, None, None] for each in (backbone.pixels.mean, backbone.pixels.std))
    with torch.no_grad():
        expected = backbone((picture / 255 - mean) / std)
    assert made.pixels.dtype == torch.float16
    torch.testing.assert_close(made.pixels[2].float(), expected[0], atol=2e-2, rtol=2e-3)


@pytest.mark.parametrize("name", [*ROWS])
def test_every_row_of_the_table_makes_a_model_that_learns(maps: dict[str, TensorSet], name: str) -> None:
    row = ROWS[name]
    changes = {**row.changes, **({"options": SMALL} if "gsp" in row.pooling else {})}
    model = head(Training(row.pooling, "pnca", **changes), maps)
    embedded = model.embed(maps["train"].pixels[:4]).embedding
    assert embedded.shape == (4, 8192 if "64x128" in name else 128)
    embedded[:, 0].sum().backward()
    assert any(each.grad is not None and bool(each.grad.any()) for each in model.parameters())


def test_tables_have_the_rows_and_settings_of_the_paper() -> None:
    assert sum(row.paper is not None for row in ROWS.values()) == 21
    tables = paper_tables((0, 1))
    frozen = tables["frozen"]
    assert len({str(training.asked()) for training in frozen.values()}) == len(frozen) == 2 * 2 * len(ROWS)
    assert (frozen["GSP+ZSR", "c2", 1].zsr, frozen["GSP", "c2", 1].layer_options) == (0.5, GSP_OPTIONS)
    assert {each.data for each in tables["distilled"].values()} == {"distilled"}
    fine_tuned = {(each.backbone, each.lr, each.epochs) for each in tables["fine_tuned"].values()}
    assert fine_tuned == {("fine-tuned", 1e-4, 8)}
    # The search changes one setting at a time.
    usual = Training("gsp", "pnca")
    for (pooling, loss, name), training in single_variants().items():
        if (pooling, loss) == ("gsp", "pnca"):
            different = [key for key in vars(usual) if vars(training)[key] != vars(usual)[key]]
            assert len(different) == (name != "as the paper")


@pytest.mark.parametrize(
    "variant", [each for each in variants("gsp", "pnca") if each.setting not in ("flavour", "labels")]
)
def test_every_variant_of_the_search_can_be_trained(
    maps: dict[str, TensorSet], variant: Variant, tmp_path: Path
) -> None:
    small = Training("gsp", "pnca", options={"prototypes": 8, "warm_start": 64}, epochs=1, dim=16)
    training = changed(small, variant.changes)
    if "prototypes" in variant.name:
        training = changed(training, {"options": {"warm_start": 0}})
    before = head(training, maps).head.embed.weight
    model, result = trained(training, maps, tmp_path)
    assert torch.equal(before, model.head.embed.weight) == (variant.name == "embedding as drawn")
    assert result.steps == 2
    assert not [*(tmp_path / "trainings").iterdir()]


def test_a_training_that_ran_out_of_time_goes_on(maps: dict[str, TensorSet], tmp_path: Path) -> None:
    training = Training("gsp", "pnca", options={"prototypes": 8, "warm_start": 64}, epochs=3, dim=8, zsr=0.5)
    _, whole = trained(training, maps, tmp_path / "whole")
    _, none = trained(training, maps, tmp_path / "cut", seconds=1e-9)
    assert none is None
    model, rest = trained(training, maps, tmp_path / "cut")
    assert rest.metrics == whole.metrics
    assert [row["map@r"] for row in rest.curve] == [row["map@r"] for row in whole.curve]
    assert weight_on_object(model, maps["test"], torch.zeros(128, dtype=torch.int64)) > 0.25


def test_standardised_features_are_those_of_every_channel(maps: dict[str, TensorSet]) -> None:
    some = maps["train"].pixels.clone()
    some[:, 3] = 1.5
    statistics = mean, std = channel_statistics(some)
    assert float(std[3]) == 1.0
    standard = (some.float() - mean) / std
    torch.manual_seed(0)
    ours = MapHead(CHANNELS, "gap", 4, statistics=statistics)
    torch.manual_seed(0)
    plain = MapHead(CHANNELS, "gap", 4)
    torch.testing.assert_close(ours.embed(some).embedding, plain.embed(standard).embedding)


def height(training: Training) -> float:
    """A hill whose top is at epsilon 80, mu 0.1 and lr 3e-4, in logarithms."""
    options = training.layer_options
    far = abs(np.log(training.lr / 3e-4))
    if training.pooling == "gsp":
        far += abs(np.log(options["epsilon"] / 80)) + abs(np.log(options["mu"] / 0.1))
    return float(np.exp(-far))


def test_the_search_climbs_a_known_hill_with_each_backbone_apart() -> None:
    tried, best = search(
        lambda trainings: {key: {"validation": height(each)} for key, each in trainings.items()}, single_variants()
    )
    assert {place[2] for place in best} == {*FLAVOURS}
    for (pooling, _, flavour), (_, training) in best.items():
        assert training.lr == pytest.approx(3e-4)
        assert training.flavour == flavour
        if pooling == "gsp":
            assert (training.layer_options["epsilon"], training.layer_options["mu"]) == (80.0, 0.1)
    assert 100 < len(tried) < 145


def test_what_helped_is_joined_and_tuned_rows_have_the_settings_of_the_search() -> None:
    reached = {"as the paper": 0.2, "lr 1e-4": 0.3, "epsilon 20": 0.25, "epsilon 40": 0.4, "mu 0.1": 0.2}

    def known(trainings: Any) -> dict[Any, Any]:
        return {key: {"validation": reached.get(key[2], 0.1)} for key in trainings if key[:2] == ("gsp", "pnca")}

    tried, _ = search(known, single_variants(seed=5), rounds=0)
    best = tried["gsp", "pnca", "what helped, together, ResNet20 (pre-activation)"]
    assert replace(best, flavour=FLAVOURS[0]) == Training("gsp", "pnca", 5, lr=1e-4, options={"epsilon": 40.0})
    table = tuned_trainings({("gsp", "pnca", FLAVOURS[1]): best}, (0, 7))
    name = ", ResNet20 (pre-activation)"
    assert len(table) == 8
    assert table[f"GSP+ZSR{name}", "pnca", 7] == replace(best, seed=7, zsr=0.5)
    assert table[f"DeLF{name}", "pnca", 0] == replace(best, seed=0, pooling="delf", options={})


def test_collages_are_stitched_anew_in_training_and_left_alone_in_evaluation(collages: Collages) -> None:
    torch.manual_seed(0)
    objects = torch.arange(100, 130)[:, None]
    drawn = [redrawn(objects, torch.arange(10)) for _ in range(2)]
    for rows in drawn:
        assert torch.equal(rows[rows >= 100].sort().values, objects.flatten())
    assert not torch.equal(*drawn)
    model, test = CollageEmbedder(ResNet20(), "gap", 8, collages, {}), collages.sets["test"]
    cells = test.pixels[:2]
    model.eval()
    assert torch.equal(model.embed(cells).embedding, model.embed(cells).embedding)
    model.train()
    assert not torch.equal(model.embed(cells).embedding, model.embed(cells).embedding)
    few = test.subset(torch.arange(2))
    assert weight_on_object(model, few, collages.objects("test")) == pytest.approx(0.25)
    # The data set is no part of a checkpoint.
    assert not any("tiles" in name for name in model.state_dict())


@pytest.mark.parametrize("name", [*TABLES])
def test_every_table_is_written_from_little(name: str) -> None:
    nothing = {"best": {}, "best_settings": {}, "unfinished": {}, "tuned": [], "distilled": [], "fine_tuned": []}
    row = {"row": "GAP", "loss": "c2", "map@r": 8.0, "std": None, "by_seed": {"0": 8.0}, "on_object": 0.25}
    assert TABLES[name]({"value": {**nothing, "search": [], "frozen": [row]}, "seeds": [0]})


def test_the_published_result_has_the_search_and_is_not_overwritten_by_fewer_seeds_or_failures(
    tmp_path: Path, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(project / "results" / "collage.json", tmp_path)
    path = tmp_path / "collage.json"
    value, before = read_result(path)["value"], path.read_bytes()
    tried = {(each["pooling"], each["loss"], each["variant"]) for each in value["search"]}
    assert {*single_variants()} <= tried
    assert all((*place.split()[:2], name) in tried for place, name in value["best"].items())

    def fail(*_: object) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(collage, "pretrain_missing", lambda *_: [])
    monkeypatch.setattr(collage, "run_grid", fail)
    with pytest.raises(ValueError, match="would drop 1, 2"):
        collage.run(RunOptions(seeds=(0,), results=tmp_path, work=tmp_path / "work"))
    with pytest.raises(RuntimeError, match="out of memory"):
        collage.run(RunOptions(results=tmp_path, work=tmp_path / "work"))
    assert path.read_bytes() == before


def test_a_tiny_run_goes_from_the_backbone_to_the_tables_and_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words, results = ["collage", "--quick", "--device", "cpu", "--work", str(tmp_path)], tmp_path / "quick" / "results"
    # Without time for any training nothing is written.
    assert commands.run("reproduce", [*words, "--seconds", "0.001"]) == 1
    assert "more --seconds" in capsys.readouterr().err
    assert not results.exists()
    monkeypatch.setattr("gspool.experiments.cifar.pretrain", None)
    assert commands.run("reproduce", words) == 0
    value = read_result(results / "collage.json")["value"]
    assert {each["row"] for each in value["frozen"]} == {"GAP", "GSP+ZSR"}
    assert {each["on_object"] for each in value["frozen"] if each["row"] == "GAP"} == {0.25}
    for name in ("collage", "collage_table"):
        assert (results / "images" / f"{name}.png").stat().st_size > 5_000
    # Nothing is trained again, not even for the picture.
    monkeypatch.setattr(collage, "run_grid", None)
    monkeypatch.setattr(collage, "write_shown_weights", None)
    assert commands.run("reproduce", words) == 0
    again = read_result(results / "collage.json")["value"]
    assert {**again, "seconds": 0} == {**value, "seconds": 0}


SHORT = {"epochs": 1, "patience": 1}


@pytest.mark.parametrize("row", [("EP", "pnca"), ("GSP, head first", "c2")])
def test_heads_start_as_the_frozen_feature_and_tune_the_network_after_them(
    root: Path, tmp_path: Path, row: Any
) -> None:
    torch.manual_seed(0)
    save_file(ResNet20().state_dict(), weights_file(tmp_path, "postactivation"))
    training = head_tries(0, SHORT, 1)[row][-1]
    worker = CollageWorker(root, tmp_path, "cpu", "torch")
    model, _, result = worker.train(training)
    assert result is not None
    if training.backbone == "head first":
        assert {*result.before} == {"head alone"}
        assert [each["step"] for each in result.curve] == [0, 1]
    else:
        # Principal directions are orthogonal, and one step hardly changes that; drawn ones are not.
        embed = model.head.embed.weight.detach()
        torch.testing.assert_close(embed.T @ embed, torch.eye(64), atol=0.02, rtol=0)


def test_runs_from_before_there_was_a_start_to_choose_are_found_again() -> None:
    assert {"start", "rate"}.isdisjoint(Training("gap", "c2").asked())
    for tries in head_tries(0, SHORT, 1).values():
        assert [Training(**training.asked()) for training in tries] == tries


def test_heads_are_chosen_by_validation_and_continue_from_their_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train(store: RunStore, trainings: list[dict[str, Any]], *_: Any) -> None:
        for asked in trainings:
            # The second try is best on validation and worst on test.
            second = asked["lr"] == 3e-4 and asked["embedding_rate"] == 1.0
            test = (0.1 if second else 0.9) + 0.1 * (asked["pooling"] == "gsp") + 0.01 * asked["seed"]
            store.put(asked, {"validation": 0.5 + second, "map@r": test, "p@1": test, "on_object": 0.25})

    monkeypatch.setattr(collage, "pretrain_missing", lambda *_: [])
    monkeypatch.setattr(collage, "run_grid", train)
    for layers in ("GAP,GSP", "DeLF", "nothing"):
        settings = collage.CollageSettings(heads=True, layers=layers)
        options = RunOptions(seeds=(0, 1), results=tmp_path, work=tmp_path / layers, settings=settings)
        if layers == "nothing":
            with pytest.raises(ValueError, match="--layers are GAP, DeLF"):
                collage.run(options)
        else:
            collage.run(options)
    record = read_result(tmp_path / "collage_heads.json")
    assert {row["row"].partition(",")[0] for row in record["value"]["heads"]} == {"GAP", "DeLF", "GSP"}
    table = collage.EXPERIMENT.tables["heads"].make(record)
    assert "| GSP | **20.50 ± 0.71** | +10.00 (+10.00 to +10.00) | 0.25 |" in table
