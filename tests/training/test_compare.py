"""`gspool compare`: tries, choice by validation, pairs, resume, and a winner that is an ordinary model."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from gspool import Embedder, pooling
from gspool.data import ImageSet
from gspool.data.image_source import ArrayImages
from gspool.executor.grid import FailedRunsError
from gspool.features import FeatureConfig
from gspool.training import compare as compare_module
from gspool.training import heads
from gspool.training.compare import (
    CompareConfig,
    Comparison,
    backbone_options,
    compare,
    options_given,
    variants_of,
)
from gspool.training.compare_data import check_sets, create_sets, picture_fold
from gspool.training.compare_runs import summary
from gspool.training.config import DataConfig, LossConfig, OptimiserConfig, TrainerConfig
from gspool.training.head_settings import FROZEN_DEFAULTS, PATCH_DEFAULTS
from gspool.training.presets import preset
from gspool.training.run import run
from training.tiny_run import draw_pictures, some_of


@pytest.fixture(scope="module")
def pictures(tmp_path_factory) -> Path:
    return draw_pictures(tmp_path_factory.mktemp("pictures"), classes=20, images=8)


def config(root: Path, folder: Path, **changes) -> CompareConfig:
    torch.manual_seed(0)  # weights of the backbone
    return CompareConfig(
        **{
            "data": DataConfig(name="folder", root=str(root), classes_per_batch=4, images_per_class=4),
            "backbone": "timm/test_vit",
            "backbone_options": {"img_size": 32, "pretrained": False},
            "layers": "gap,gsp",
            "grid": "gsp.mu=0.1,0.5",
            "folds": 4,
            "use_folds": 2,
            "seeds": "0",
            "features": FeatureConfig(folder=str(folder / "tokens"), views=["centre"]),
            "trainer": TrainerConfig(max_steps=10, evaluate_every=5, progress=False),
            "folder": str(folder / "run"),
            "progress": False,
            **changes,
        }
    )


@pytest.fixture(scope="module")
def compared(pictures, tmp_path_factory) -> Comparison:
    return compare(config(pictures, tmp_path_factory.mktemp("compared")))


def by_row(found: Comparison) -> dict[str, dict]:
    return {line["row"]: {name: line[name] for name in line if name != "seconds"} for line in found.lines}


def test_a_comparison_ends_with_a_table_a_report_and_a_model_that_embeds(compared):
    rows = by_row(compared)
    assert {*rows} == {"frozen gap", "frozen cls", "gap", "gsp"}
    validations = [line["validation"] for line in compared.lines]
    assert validations == sorted(validations, reverse=True)
    assert compared.winner == compared.lines[0]["row"]
    # Starting as the frozen feature, and keeping the best of all steps, a learned gap is never behind it.
    assert rows["gap"]["validation"] >= rows["frozen gap"]["validation"]
    model = Embedder.from_pretrained(compared.folder / "model")
    assert model(torch.zeros(2, 3, 32, 32, dtype=torch.uint8)).shape == (2, 64)
    page = (compared.folder / "report.html").read_text()
    assert "gsp" in page
    assert page.count("<img") == 2


def test_a_second_call_trains_only_what_is_missing(pictures, compared):
    (runs,) = compared.folder.glob("runs-*.jsonl")
    before = runs.read_text()
    # As a kill leaves it: whole lines, and half of one.
    runs.write_text(before[: before.rindex("\n", 0, len(before) - 1) + 30])
    assert by_row(compare(config(pictures, compared.folder.parent))) == by_row(compared)
    after = runs.read_text().splitlines()
    assert after[: before.count("\n") - 1] == before.splitlines()[:-1]


def test_the_saved_model_is_of_the_settings_of_the_table(pictures, tmp_path):
    def classifier(lr: float) -> torch.Tensor:
        optimiser = OptimiserConfig(lr=lr)
        settings = config(pictures, tmp_path, task="classify", layers="gap", grid="", use_folds=1, optimiser=optimiser)
        return load_file(compare(settings).folder / "model" / "classifier.safetensors")["weight"]

    first = classifier(1e-3)
    assert not torch.equal(classifier(1e-2), first)
    assert torch.equal(classifier(1e-3), first)


def test_other_pictures_or_weights_are_compared_anew(pictures, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(pictures, copy)

    def stores(seed: int) -> int:
        settings = config(copy, tmp_path, layers="gap", grid="", use_folds=1)
        torch.manual_seed(seed)  # weights of the backbone
        return len([*compare(settings).folder.glob("runs-*.jsonl")])

    assert [stores(0), stores(0), stores(1)] == [1, 1, 2]
    shutil.rmtree(copy / "class03")
    assert stores(0) == 3


def test_a_try_that_fails_is_left_out_of_the_table(pictures, tmp_path, monkeypatch):
    from gspool.training import compare_runs

    def build(name, *others):
        if name == "gmp":
            raise ValueError("no maximum today")
        return heads.build_head(name, *others)

    monkeypatch.setattr(compare_runs, "build_head", build)
    monkeypatch.setattr(compare_module, "check_heads", lambda *_: None)
    with pytest.warns(UserWarning, match=r"(?s)1 trainings failed.*no maximum today"):
        found = compare(config(pictures, tmp_path, layers="gap,gmp", grid="", use_folds=1))
    assert {line["row"] for line in found.lines} == {"frozen gap", "frozen cls", "gap"}
    with pytest.raises(FailedRunsError, match="no maximum today"):
        compare(config(pictures, tmp_path / "other", layers="gmp", grid="", use_folds=1))


def test_only_the_chosen_try_is_repeated_with_the_other_seeds(pictures, tmp_path):
    found = compare(config(pictures, tmp_path, layers="gsp", use_folds=1, seeds="0,1"))
    (runs,) = found.folder.glob("runs-*.jsonl")
    asked = [json.loads(line)["asked"] for line in runs.read_text().splitlines()]
    assert [run["seed"] for run in asked if run["learn"]] == [0, 0, 1]
    assert by_row(found)["gsp"]["runs"] == 2


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"loss": LossConfig(name="typo")}, "typo"),
        ({"trainer": TrainerConfig(monitor="accuracy")}, "accuracy"),
        ({"trainer": TrainerConfig(compile=True)}, "--trainer.compile has no effect"),
        ({"task": "classify", "loss": LossConfig(name="c2")}, "--loss has no effect"),
        ({"gpus": 0.5}, "needs --ray"),
        ({"grid": "gsp.prototypes_from=kmean"}, "tokens, means, kmeans, got 'kmean'"),
        ({"grid": "gsp.groups=5"}, "gsp.*groups divide"),
        ({"layers": "cbam", "grid": "cbam.token_dropout=0.5"}, "cbam"),
    ],
)
def test_settings_that_do_not_fit_are_refused_before_tokens_are_computed(pictures, tmp_path, changes, match):
    with pytest.raises(ValueError, match=match):
        compare(config(pictures, tmp_path, **changes))
    assert not (tmp_path / "tokens").exists()


@pytest.mark.parametrize("changes", [{"folds": 1}, {"folds": 0}, {"use_folds": 0}, {"use_folds": 5}])
def test_folds_that_cannot_be_are_refused(changes):
    with pytest.raises(ValueError, match="folds"):
        CompareConfig(**changes)


def test_defaults_fit_an_embedding_of_any_length():
    odd = {each.layer: dict(each.options) for each in variants_of("ep,gsp", "", class_token=True, dim=100)}
    assert (odd["ep"]["queries"], odd["gsp"]["groups"]) == (4, 4)


def test_numbers_of_a_grid_are_read_as_they_are_written_in_python():
    tries = variants_of("gsp", "gsp.mu=5e-2,0.1", class_token=False)[1:]
    assert [dict(each.options)["mu"] for each in tries] == [0.05, 0.1]


def test_classes_in_both_splits_are_refused(tmp_path):
    for split in ("train", "test"):
        draw_pictures(tmp_path / split, classes=9, images=3)
    with pytest.raises(ValueError, match=r"9 classes are in both .*--task classify"):
        create_sets(DataConfig(name="folder", root=str(tmp_path)))


def test_a_folder_loses_no_class_between_training_and_test(tmp_path):
    draw_pictures(tmp_path, classes=8, images=3)
    learning, test = create_sets(DataConfig(name="folder", root=str(tmp_path)))
    assert (learning.num_classes, test.num_classes) == (6, 2)


def test_every_fold_of_a_classifier_needs_pictures_to_validate_on(tmp_path):
    labels = [0, 0, *range(1, 8)]
    images = ImageSet(ArrayImages(torch.zeros(9, 3, 8, 8, dtype=torch.uint8)), labels, [*"abcdefgh"], name="few")
    with pytest.raises(ValueError, match="too few classes have two pictures"):
        check_sets(images, images, 4, "classify")


def test_several_processes_find_what_one_finds(pictures, compared, tmp_path):
    rows = by_row(compare(config(pictures, tmp_path, layers="gap", grid="", processes=2)))
    for name in ("frozen gap", "gap"):
        assert rows[name]["validation"] == pytest.approx(by_row(compared)[name]["validation"])


def test_a_classifier_tests_other_pictures_of_the_classes_it_learned(pictures, tmp_path):
    """The model embeds; with the classifier beside it, it predicts what the report says."""
    found = compare(config(pictures, tmp_path, task="classify", layers="gap,gsp", grid=""))
    assert {line["row"] for line in found.lines} == {"frozen gap", "frozen cls", "gap", "gsp"}
    best = found.lines[0]
    assert best["validation"] > 20  # of 20 classes, chance is 5 %
    learning, test = create_sets(DataConfig(name="folder", root=str(pictures)), "classify")
    assert learning.class_names == test.class_names
    assert not {*learning.images.paths} & {*test.images.paths}
    assert len(learning) + len(test) == 160
    model = Embedder.from_pretrained(found.folder / "model")
    classifier = load_file(found.folder / "model" / "classifier.safetensors")
    assert json.loads((found.folder / "model" / "classes.json").read_text()) == list(test.class_names)
    images = torch.stack([model.pixels.transform()(test.images[index]) for index in range(len(test))])
    with torch.no_grad():
        predicted = (model(images) @ classifier["weight"].T + classifier["bias"]).argmax(1)
    result = json.loads((found.folder / "compare.json").read_text())["value"]
    accuracies = [run["found"]["test"]["top1"] for run in result["runs"] if run["asked"]["row"] == found.winner]
    accuracy = 100 * float((predicted == test.labels).double().mean())
    assert min(abs(accuracy - each) for each in accuracies) < 4  # tokens of the comparison are rounded to bfloat16
    page = (found.folder / "report.html").read_text()
    assert "top-1 accuracy" in page
    assert "MAP@R" not in page


def test_splits_of_the_data_are_kept_where_they_share_their_classes(pictures, tmp_path):
    for split, numbers in (("train", range(5)), ("test", range(5, 8))):
        for label in range(3):
            target = tmp_path / split / f"class{label:02d}"
            target.mkdir(parents=True)
            for number in numbers:
                shutil.copy(pictures / target.name / f"{number}.png", target)
    learning, test = create_sets(DataConfig(name="folder", root=str(tmp_path)), "classify")
    assert (len(learning), len(test)) == (15, 9)
    # Classes of glyphs are not shared: every class is divided instead.
    learning, test = create_sets(DataConfig(name="glyphs", options={"images_per_class": 5}), "classify")
    assert len(test) * 4 == len(learning)
    assert {*test.labels.tolist()} == {*learning.labels.tolist()}


def test_every_picture_validates_in_one_fold_and_a_single_one_in_none():
    labels = torch.tensor([0] * 5 + [1] * 2 + [2] + [3] * 4)
    held = torch.stack([picture_fold(labels, 4, fold) for fold in range(4)])
    assert held.sum(0).tolist() == [1] * 7 + [0] + [1] * 4
    assert held.any(1).all()


@pytest.mark.parametrize(
    ("layers", "grid", "match"),
    [
        ("gap,nope", "", "nope"),
        ("gap", "gap.mu=1", "mu"),
        ("gap", "gsp.mu=0.1", "gsp"),
        ("gsp", "mu:0.1", "LAYER.OPTION"),
    ],
)
def test_wrong_layers_and_grids_are_refused(layers, grid, match):
    with pytest.raises(ValueError, match=match):
        variants_of(layers, grid, class_token=False)


CHOSEN = {
    "frozen_cub_resnet50_227_pnca": (FROZEN_DEFAULTS, {"gemean+gsp": "gemean+gsp keys"}),
    "frozen_cub_vit_small_patch14_dinov2_224_pnca": (
        PATCH_DEFAULTS,
        {
            "gsp": "gsp one each",
            "gsp+cls": "gsp+cls one each concat",
            **{f"{name}+cls": f"{name}+cls concat" for name in ("ep", "delf", "abmilp")},
        },
    ),
}


@pytest.mark.parametrize("result", CHOSEN)
def test_defaults_of_heads_are_those_that_validation_chose(result):
    defaults, rows = CHOSEN[result]
    path = Path(__file__).parents[2] / "results" / f"{result}.json"
    chosen = json.loads(path.read_text())["value"]["chosen"]
    usual = {"lr": CompareConfig().optimiser.lr, "rate": 1.0, "prototypes_from": "kmeans"}
    for name in [*rows, *(name for name in chosen if name in pooling.list() and name not in rows)]:
        row = chosen[rows.get(name, name)]
        merged = {**row["options"], **row["head"]}
        own = {**defaults.get(name, {}), "lr": defaults.get(name, {}).get("lr", usual["lr"])}
        assert {**{key: usual[key] for key in merged if key in usual}, **own} == pytest.approx(merged), name


def test_a_setting_for_all_heads_wins_over_their_own():
    given = options_given(CompareConfig(optimiser=replace(CompareConfig().optimiser, lr=1e-3)))
    delf = variants_of("delf,ep", "", class_token=False, given=given)[1:]
    assert [each.name for each in delf] == ["delf", "ep queries=2 rate=30.0"]
    assert dict(variants_of("delf", "", class_token=False)[1].head) == {"lr": 9e-4}
    assert options_given(CompareConfig()) == set()
    assert options_given(CompareConfig(task="classify")) == {"lr"}


def test_the_usual_backbone_sees_the_pictures_as_the_preset_folder_does():
    own = CompareConfig(backbone_options={"weights": "file"})
    assert backbone_options(own) == {"weights": "file", "img_size": preset("folder").model.backbone_options["img_size"]}
    assert backbone_options(replace(own, backbone_options={"img_size": 448})) == {"img_size": 448, "pretrained": True}
    assert backbone_options(replace(own, backbone="timm/resnet18")) == {"weights": "file"}


def test_the_usual_layers_fit_the_features():
    maps, patches = ({each.layer for each in variants_of("", "", class_token=own)} for own in (False, True))
    assert maps - patches == {"gemean", "gemean+gsp"}
    assert patches - maps == {"cls", "gsp+cls"}
    everything = [each.layer for each in variants_of("all", "", class_token=True) if each.learn]
    assert everything == [*pooling.list(), "cls"]


def test_a_backbone_without_its_weights_is_refused(pictures, tmp_path):
    with pytest.raises(ValueError, match="weights FILE"):
        compare(config(pictures, tmp_path, backbone="keras/resnet50", backbone_options={}))


def test_too_few_classes_are_refused_before_tokens_are_computed(pictures, tmp_path):
    with pytest.raises(ValueError, match=r"10 folds need at least 20 classes"):
        compare(config(pictures, tmp_path, folds=10))
    assert not (tmp_path / "tokens").exists()


def test_broken_pictures_are_named_and_the_comparison_goes_on(pictures, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(pictures, copy)
    (copy / "class03" / "2.png").write_bytes(b"no picture")
    for path in (copy / "class11").iterdir():
        path.write_bytes(b"nor these")
    settings = config(copy, tmp_path, layers="gap", grid="", use_folds=1)
    settings.data.check = "skip"
    with pytest.warns(UserWarning, match=r"(?s)broken images.*class"):
        found = compare(settings)
    assert [line["row"] for line in found.lines]
    assert (found.folder / "model").is_dir()


@pytest.mark.parametrize(
    ("classes", "images", "task", "match"),
    [
        (1, 4, "embed", "at least two"),
        (1, 4, "classify", "at least two"),
        (4, 4, "embed", "--folds|fractions"),
        (8, 1, "classify", "single image"),
    ],
)
def test_data_that_is_too_small_is_refused_with_what_to_do(pictures, tmp_path, classes, images, task, match):
    few = some_of(pictures, tmp_path / "few", classes, images)
    with pytest.raises(ValueError, match=match):
        compare(config(few, tmp_path, task=task))
    assert not (tmp_path / "tokens").exists()


@pytest.mark.parametrize(("task", "images"), [("embed", 2), ("classify", 3)])
def test_two_pictures_a_class_are_enough(pictures, tmp_path, task, images):
    few = some_of(pictures, tmp_path / "few", 20, images)
    assert compare(config(few, tmp_path, task=task, layers="gap", grid="", use_folds=1)).lines


def test_pairs_are_runs_of_one_fold_and_seed():
    def made(row, fold, seed, value):
        metrics = {"map@r": value, "p@1": value}
        found = {
            "validation": metrics,
            "test": metrics,
            "entropy": None,
            "best_step": 1,
            "parameters": 1,
            "seconds": 1.0,
        }
        return {"asked": {"row": row, "fold": fold, "seed": seed}, "found": found}

    runs = [made("gap", fold, seed, 10 * fold + seed) for fold in (0, 1) for seed in (0, 1)]
    runs += [made("gsp", fold, seed, 10 * fold + seed + 2 + fold) for fold in (0, 1) for seed in (0, 1)]
    runs += [made("frozen gap", fold, 0, 10 * fold) for fold in (0, 1)]
    lines = {line["row"]: line for line in summary(runs)}
    assert lines["gsp"]["against_gap"]["mean"] == pytest.approx(2.5)
    assert lines["gsp"]["against_gap"]["pairs"] == 4
    assert lines["gap"]["against_best"]["mean"] == pytest.approx(-2.5)
    # The frozen feature has one run a fold, which stands beside every seed.
    assert lines["frozen gap"]["against_gap"]["mean"] == pytest.approx(-0.5)


def test_the_command_prints_the_winner(pictures, tmp_path, capsys):
    arguments = [
        *("--data.root", str(pictures), "--backbone", "timm/test_vit", "--backbone_options.img_size", "32"),
        *("--backbone_options.pretrained", "false"),
        *("--layers", "gap", "--seeds", "0", "--use_folds", "1", "--trainer.max_steps", "4"),
        *("--trainer.evaluate_every", "2", "--data.classes_per_batch", "4", "--progress", "false"),
        *("--features.folder", str(tmp_path / "tokens"), "--folder", str(tmp_path / "run")),
    ]
    assert run("compare", arguments) == 0
    assert "best on the validation classes" in capsys.readouterr().out
    assert run("compare", ["--layers", "nope", "--data.root", str(pictures)]) == 2


def test_without_a_network_the_default_backbone_is_one_that_is_cached(monkeypatch, tmp_path, capsys):
    from gspool.models import hub
    from gspool.training import compare as module

    asked = []
    monkeypatch.setattr(hub, "available_backbone", lambda wanted: asked.append(wanted) or "timm/resnet18.a1_in1k")

    def stop(config, given):
        raise ValueError(f"compares heads on {config.backbone}")

    monkeypatch.setattr(module, "compare", stop)
    with pytest.raises(ValueError, match=r"on timm/resnet18\.a1_in1k"):
        module.compare_command(["--data.root", str(tmp_path)])
    assert "timm/resnet18.a1_in1k" in capsys.readouterr().out
    with pytest.raises(ValueError, match="on timm/test_vit"):  # what the user names is not replaced
        module.compare_command(["--data.root", str(tmp_path), "--backbone", "timm/test_vit"])
    assert asked == ["timm/vit_small_patch14_dinov2"]
