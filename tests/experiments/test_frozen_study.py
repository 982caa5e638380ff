"""The study of frozen backbones: equal tries, and tables of what is finished."""

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from gspool.executor.run_store import RunStore
from gspool.experiments import frozen
from gspool.experiments.experiment import RunOptions
from gspool.experiments.frozen import (
    FrozenSettings,
    check,
    chosen_runs,
    heads_table,
    lead_table,
    result_name,
    study_sets,
    tries_of,
    tries_to_classify,
    variants_of,
    was_cut_off,
    write_record,
    zsr_table,
)
from gspool.features import TokenLayout
from gspool.pooling.embedding import check_head_options
from gspool.provenance import read_result
from gspool.training.compare import CompareConfig
from gspool.training.compare_data import Tokens
from gspool.training.compare_runs import asked_of, configured
from gspool.training.config import TrainerConfig
from gspool.training.gpu_data import TensorSet

LAYOUT = TokenLayout(2, 0, False, 64, 2048, (8, 8), "bf16")


@pytest.mark.parametrize("class_token", [False, True])
def test_every_row_has_as_many_different_tries_with_options_that_exist(class_token: bool) -> None:
    for row, tries in tries_of(3e-4, class_token).items():
        assert len({str(each) for each in tries}) == (36 if row.endswith(" wide") else 6), row
        for options, _ in tries:
            check_head_options(row.split(" ")[0], options)
        if not row.endswith((" wide", " zsr")):
            classify = tries_to_classify(row, tries, 3e-4)
            assert len({str(each) for each in classify}) == 6, row
            assert len({head["lr"] for _, head in classify}) >= 3, row


def found(validation: float, test: float) -> dict[str, Any]:
    return {
        "validation": {"map@r": validation, "p@1": validation, "p@r": validation},
        "test": {"map@r": test, "p@1": test, "p@r": test},
        "entropy": 1.0,
        "best_step": 1,
        "steps": 2,
        "seconds": 1.0,
        "parameters": 3,
    }


@pytest.fixture
def stopped(tmp_path: Path) -> tuple[RunOptions, FrozenSettings, dict[str, Any], RunStore]:
    """A study of three rows that was stopped: ep lacks a fold of every try, gsp has an extra run."""
    options = RunOptions(results=tmp_path, settings=FrozenSettings(layers="gap,gsp,ep"))
    rows = variants_of(options, options.settings, class_token=False)
    store = RunStore(tmp_path / "runs.jsonl")
    for fold in (0, 1):
        for place, variant in enumerate(rows["gap"]):
            store.put(asked_of("gap", variant, fold, 0), found(10 + place, 5 + fold))
        for place, variant in enumerate(rows["gsp"]):
            store.put(asked_of("gsp", variant, fold, 0), found(30 - place, 8 + 2 * fold))
    store.put(asked_of("gsp", rows["gsp"][0], 2, 0), found(30, 90))
    store.put(asked_of("ep", rows["ep"][0], 0, 0), found(99, 99))
    return options, options.settings, rows, store


def test_a_stopped_study_shows_what_all_rows_have(stopped: Any) -> None:
    options, settings, rows, store = stopped
    write_record(options, settings, LAYOUT, rows, store)
    record = read_result(options.results / "frozen_cub_resnet50_227_pnca.json")
    assert {*record["value"]["chosen"]} == {"gap", "gsp"}
    runs = chosen_runs(record["value"])
    assert sorted((run["asked"]["row"], run["asked"]["fold"]) for run in runs) == [
        ("gap", 0),
        ("gap", 1),
        ("gsp", 0),
        ("gsp", 1),
    ]
    # The last try of gap and the first of gsp are best on validation, whatever their test classes say.
    assert {run["found"]["validation"]["map@r"] for run in runs} == {15, 30}
    table = heads_table(record)
    assert "| gsp | mu 0.1, epsilon 10" in table
    assert "+3.50" in table


def test_the_same_command_continues_from_the_written_result(stopped: Any) -> None:
    options, settings, rows, store = stopped
    write_record(options, settings, LAYOUT, rows, store)
    again = RunStore(options.results / "none.jsonl", options.results / "frozen_cub_resnet50_227_pnca.json")
    assert len(again.runs()) == len(store.runs())


def test_every_run_keeps_its_origin_over_calls_at_several_commits(stopped: Any, monkeypatch: Any) -> None:
    options, settings, rows, _ = stopped
    result = options.results / "frozen_cub_resnet50_227_pnca.json"
    calls = {"first": [(0, 0), (1, 0)], "second": [(0, 0)], "third": [(2, 1)]}  # the second does a fold again
    for commit, places in calls.items():
        monkeypatch.setenv("GSPOOL_COMMIT", commit)
        store = RunStore(options.results / f"runs {commit}.jsonl", result)
        for variant, (fold, seed) in itertools.product(rows["gap"], places):
            store.put(asked_of("gap", variant, fold, seed), found(10, 5))
        write_record(options, settings, LAYOUT, rows, store)
    runs = RunStore(options.results / "none.jsonl", result).runs()
    assert {(run.asked["fold"], run.origin["commit"]) for run in runs} == {(0, "second"), (1, "first"), (2, "third")}
    assert {each["commit"]: each["runs"] for each in read_result(result)["origins"]} == dict.fromkeys(calls, 6)


def test_settings_of_another_study_are_used_unchanged(stopped: Any) -> None:
    options, settings, rows, store = stopped
    write_record(options, settings, LAYOUT, rows, store)
    like = FrozenSettings(data="flowers", like="frozen_cub_resnet50_227_pnca")
    taken = variants_of(options, like, class_token=False)
    assert taken["gsp"] == [rows["gsp"][0]]
    assert taken["gap"] == [rows["gap"][-1]]


def test_an_unknown_row_is_refused_with_those_there_are() -> None:
    with pytest.raises(ValueError, match="no row nothing; it has gap"):
        variants_of(RunOptions(), FrozenSettings(layers="nothing"), class_token=False)


def test_heads_with_zsr_are_compared_with_the_same_heads_without(tmp_path: Path) -> None:
    options = RunOptions(results=tmp_path, settings=FrozenSettings(layers="gap,gsp,gsp zsr"))
    rows = variants_of(options, options.settings, class_token=False)
    config = configured(CompareConfig(), dict(rows["gsp zsr"][3].head), seed=0)
    assert (config.loss.zsr, config.loss.zsr_options) == (0.1, {"scale": 1.0, "repeats": 1})
    store = RunStore(tmp_path / "runs.jsonl")
    for row, test in (("gap", 5.0), ("gsp", 8.0), ("gsp zsr", 8.5)):
        for fold in (0, 1):
            for place, variant in enumerate(rows[row]):
                store.put(asked_of(row, variant, fold, 0), found(30 - place, test + fold))
    write_record(options, options.settings, LAYOUT, rows, store)
    # Rows with ZSR do not replace the study without them.
    record = read_result(tmp_path / "frozen_cub_resnet50_227_pnca_zsr.json")
    assert "| gsp | mu 0.05, epsilon 10, prototypes 8, lr 0.0003, zsr 0.1, zsr_scale 9.5" in zsr_table(record)
    assert "| +0.50 (+0.50 to +0.50) | 2 |" in zsr_table(record)


def test_the_lead_of_gsp_is_that_of_the_best_heads_by_validation(tmp_path: Path) -> None:
    settings = FrozenSettings(backbone="timm/vit_small_patch14_dinov2", layers="gap,ep,gsp,gsp+cls groups keys,cls")
    options, store = RunOptions(results=tmp_path, settings=settings), RunStore(tmp_path / "runs.jsonl")
    rows = variants_of(options, settings, class_token=True)
    reached = {"gap": (10, 5), "ep": (30, 20), "gsp": (40, 19), "gsp+cls groups keys": (50, 30), "cls": (60, 31)}
    for row, (validation, test) in reached.items():
        for fold in (0, 1):
            for place, variant in enumerate(rows[row]):
                store.put(asked_of(row, variant, fold, 0), found(validation - place, test + fold))
    write_record(options, settings, LAYOUT, rows, store)
    table = lead_table(read_result(tmp_path / "frozen_cub_vit_small_patch14_dinov2_227_pnca.json"))
    assert "| all | gsp+cls groups keys | cls | -10.00 | -1.00 (-1.00 to -1.00) |" in table
    assert "| patches | gsp | ep | +10.00 | -1.00 (-1.00 to -1.00) |" in table


def test_a_training_that_a_smaller_limit_cut_off_is_done_again() -> None:
    trainer = TrainerConfig(max_steps=1200, evaluate_every=50, patience=4)
    cut_off = {
        name: was_cut_off({"steps": steps, "best_step": best}, trainer)
        for name, steps, best in [
            ("improved at its limit", 400, 400),
            ("waited too short", 400, 250),
            ("waited long enough", 400, 200),
            ("at the limit of today", 1200, 1200),
            ("nothing learned", 0, 0),
        ]
    }
    assert [name for name, answer in cut_off.items() if answer] == ["improved at its limit", "waited too short"]


def test_a_study_with_fewer_classes_has_a_result_of_its_own() -> None:
    assert result_name(FrozenSettings(classes=16)) == "frozen_cub_resnet50_227_pnca_16classes"


def test_rows_of_an_earlier_call_stay_in_the_result(stopped: Any) -> None:
    options, settings, rows, store = stopped
    write_record(options, settings, LAYOUT, rows, store)
    name = "frozen_cub_resnet50_227_pnca"
    before = read_result(options.results / f"{name}.json")["value"]
    again = RunStore(options.results / "none.jsonl", options.results / f"{name}.json")
    write_record(options, replace(settings, layers="gap"), LAYOUT, {"gap": rows["gap"]}, again)
    after = read_result(options.results / f"{name}.json")["value"]
    assert after["chosen"] == before["chosen"]
    assert len(after["runs"]) == len(before["runs"])


def test_runs_of_other_settings_are_not_mixed(stopped: Any, tmp_path: Path) -> None:
    options, settings, rows, store = stopped
    write_record(options, settings, LAYOUT, rows, store)
    weights = tmp_path / "weights"
    weights.touch()

    def asks(**changes: Any) -> RunOptions:
        return replace(options, settings=replace(settings, **{"weights": str(weights), **changes}))

    check(asks())
    with pytest.raises(ValueError, match=r"has runs with start identity.*asks for start random"):
        check(asks(start="random"))
    with pytest.raises(ValueError, match=r"runs with dim 128.*asks for dim 512"):
        check(asks(dim=512))
    with pytest.raises(FileNotFoundError, match="--weights"):
        check(asks(weights=None))
    with pytest.raises(FileNotFoundError, match="--like"):
        check(asks(like="nothing"))


def test_one_of_several_collages_of_a_picture_validates(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = torch.arange(12)
    whole = {
        split: TensorSet.of(rows[:, None], rows // 6, name="rows", split=split) for split in ("train", "validation")
    }
    monkeypatch.setattr(frozen, "token_sets", lambda *_: whole)
    sets = study_sets(3, Tokens(None, None), 4, 0, "embed")
    assert sets["validation"].pixels[sets["validation"].rows].flatten().tolist() == [0, 3, 6, 9]
    assert len(sets["train"]) == 12
