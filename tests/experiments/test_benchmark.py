"""The benchmark family on the stand-in: trained, resumed, written, never trained twice."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from gspool.experiments import benchmark, components, mu, retrieval_study, retrieval_training, screening
from gspool.experiments.benchmark import BenchmarkSettings
from gspool.experiments.experiment import RunOptions
from gspool.experiments.plots import draw_plots
from gspool.experiments.retrieval_study import StudySettings, jobs_of
from gspool.experiments.retrieval_training import Variant
from gspool.provenance import read_result


def options(folder: Path, **chosen) -> RunOptions:
    return RunOptions(
        seeds=(0,),
        results=folder / "results",
        work=folder / "work",
        images=folder / "images",
        quick=True,
        settings=BenchmarkSettings(**{"losses": "c2", **chosen}),
    )


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the trainings that are made, in their order."""
    made: list[str] = []
    train_one = retrieval_training.train_one

    def noted(study, variant, asked, *rest):
        made.append(f"{asked['variant']} {asked['fold']} {asked['seed']}")
        return train_one(study, variant, asked, *rest)

    monkeypatch.setattr(retrieval_training, "train_one", noted)
    return made


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> RunOptions:
    """A benchmark of one loss and one repeat of all folds, trained once."""
    chosen = options(tmp_path_factory.mktemp("whole"))
    benchmark.run(chosen)
    return chosen


def value_of(chosen: RunOptions, name: str = "benchmark_cub") -> dict:
    return read_result(chosen.results / f"{name}.json")["value"]


def test_a_benchmark_from_training_to_table(whole: RunOptions) -> None:
    value = value_of(whole)
    assert [(row["variant"], row["folds"]) for row in value["variants"]] == [
        (name, [0, 1, 2, 3]) for name in ("c2 gap", "c2 gsp")
    ]
    assert [row["joined"]["combinations"] for row in value["variants"]] == [1, 1]
    assert value["variants"][1]["difference_from_gap"]["pairs"] == 4
    assert {run["asked"]["variant"] for run in value["runs"]} == {"c2 gap", "c2 gsp"}
    found = value["runs"][0]["found"]
    assert [point.split(":")[0] for point in found["curve"].split()] == ["2", "4"]
    assert (found["steps"], found["ending"]) == (4, "max_steps")
    assert len(found["mean_weights"].split()) > 1
    folders = [path for path in (whole.work / "benchmark" / "cub-fair-keras-resnet50").iterdir() if path.is_dir()]
    assert len(folders) == 8
    # Checkpoints of hundreds of megabytes do not stay; embeddings do, and so do figures.
    assert not [*(whole.work).rglob("*.pt")]
    assert all((folder / "embeddings.safetensors").is_file() for folder in folders)
    assert len(load_file(folders[0] / "embeddings.safetensors")["labels"]) == 24


def test_what_is_finished_is_not_trained_again(whole: RunOptions, trained: list[str], tmp_path: Path) -> None:
    before = value_of(whole)
    benchmark.run(whole)
    assert trained == []
    assert value_of(whole) == before
    # Components shares the folder of finished trainings.
    benchmark_runs = {"c2 gap", "c2 gsp"}
    components.EXPERIMENT.run(replace(whole, settings=StudySettings(folds="0")))
    assert trained == ["c2 gsp without zsr 0 0", "c2 gsp mu 1 0 0"]
    rows = {row["variant"]: row for row in value_of(whole, "components")["variants"]}
    assert [*rows] == [variant.name for variant in components.VARIANTS]
    assert all(rows[name]["runs"] == 4 for name in benchmark_runs)


def test_a_grid_continues_with_folds_seeds_and_settings(trained: list[str], tmp_path: Path) -> None:
    first = options(tmp_path, folds="2", poolings="gap")
    benchmark.run(first)
    assert trained == ["c2 gap 2 0"]
    benchmark.run(replace(first, seeds=(0, 1), settings=replace(first.settings, poolings="")))
    assert trained[1:] == ["c2 gsp 2 0", "c2 gap 2 1", "c2 gsp 2 1"]
    benchmark.run(replace(first, settings=replace(first.settings, poolings="", variants="epsilon 20, tokens;learned")))
    assert trained[4:] == ["c2 gsp learned 2 0", "c2 gsp epsilon 20, tokens 2 0"]
    benchmark.run(replace(first, settings=replace(first.settings, poolings="", variants="best", folds="3")))
    assert len(trained) == 7
    rows = value_of(first)["variants"]
    assert sorted(row["runs"] for row in rows) == [1, 2, 2, 2]


def test_a_training_that_time_cut_off_goes_on_and_ends_like_one_that_was_not(whole: RunOptions, tmp_path: Path) -> None:
    study = benchmark.study(
        replace(whole, work=tmp_path, settings=BenchmarkSettings(folds="0")), [Variant("c2", "gsp")]
    )
    (asked,) = jobs_of(study)
    work = retrieval_training.make_worker(study)
    assert work(asked, 1e-6) is None
    folder = retrieval_training.run_folder(study, asked)
    assert (folder / "last.pt").is_file()
    found = work(asked, 0.0)
    (expected,) = (run["found"] for run in value_of(whole)["runs"] if run["asked"] == asked)
    for name in ("metrics", "validation", "curve", "steps", "best_step", "mean_weights"):
        assert found[name] == expected[name], name
    elsewhere = retrieval_training.run_folder(replace(study, options=whole), asked)
    ours, theirs = (load_file(each / "embeddings.safetensors")["embeddings"] for each in (folder, elsewhere))
    assert torch.equal(ours, theirs)
    # Finished and cleaned up, but killed before it was noted: read, not trained.
    assert work(asked, 0.0) == found


def test_without_time_nothing_is_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no training has finished"):
        benchmark.run(replace(options(tmp_path, folds="0"), seconds=1e-6))
    assert not [*tmp_path.rglob("*.json")] or not (tmp_path / "results").exists()


def measured(whole: RunOptions, folder: Path) -> RunOptions:
    """The same result as if it had been measured, and an empty folder of trainings."""
    record = json.loads((whole.results / "benchmark_cub.json").read_text())
    record["command"] = record["command"].replace(" --quick", "")
    folder.joinpath("results").mkdir(parents=True)
    folder.joinpath("results/benchmark_cub.json").write_text(json.dumps({**record, "note": "By hand."}))
    return replace(whole, results=folder / "results", work=folder / "elsewhere", images=folder / "images")


def test_trainings_inside_a_result_count_as_finished(whole: RunOptions, trained: list[str], tmp_path: Path) -> None:
    chosen = measured(whole, tmp_path)
    before = value_of(chosen)
    benchmark.run(replace(chosen, seeds=(), settings=replace(chosen.settings, train=False)))
    # Joined models and maps are kept, although their embeddings are not here.
    assert value_of(chosen) == before
    assert read_result(chosen.results / "benchmark_cub.json")["note"] == "By hand."
    benchmark.run(replace(chosen, seeds=(0, 1), settings=replace(chosen.settings, folds="0", poolings="gsp")))
    assert trained == ["c2 gsp 0 1"]
    after = {row["variant"]: row for row in value_of(chosen)["variants"]}
    assert after["c2 gsp"]["runs"] == 5
    assert after["c2 gsp"]["joined"] == before["variants"][1]["joined"]


def test_figures_of_joined_models_go_where_a_training_changed(whole: RunOptions, tmp_path: Path) -> None:
    chosen = measured(whole, tmp_path)
    store = benchmark.study(chosen).open_store()
    run = next(each for each in store.runs() if each.asked["variant"] == "c2 gap")
    store.put(run.asked, {**run.found, "metrics": {**run.found["metrics"], "map@r": 0.9}})
    benchmark.run(replace(chosen, settings=replace(chosen.settings, train=False), seeds=()))
    rows = {row["variant"]: row for row in value_of(chosen)["variants"]}
    assert (rows["c2 gap"]["joined"], rows["c2 gsp"]["joined"] is None) == (None, False)


def test_a_damaged_result_is_not_overwritten(whole: RunOptions, tmp_path: Path, trained: list[str]) -> None:
    chosen = measured(whole, tmp_path)
    path = chosen.results / "benchmark_cub.json"
    path.write_text(path.read_text()[:1000])
    with pytest.raises(ValueError, match=r"benchmark_cub\.json"):
        benchmark.run(chosen)
    assert trained == []
    assert len(path.read_text()) == 1000


def test_figures_are_written_where_a_training_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_grid = retrieval_study.run_grid

    def failing(store, jobs, *rest):
        run_grid(store, jobs[:1], *rest)
        raise RuntimeError("1 of 2 trainings failed")

    monkeypatch.setattr(retrieval_study, "run_grid", failing)
    chosen = options(tmp_path, folds="0")
    with pytest.raises(RuntimeError, match="1 of 2"):
        benchmark.run(chosen)
    assert [row["variant"] for row in value_of(chosen)["variants"]] == ["c2 gap"]


def test_of_two_trainings_one_that_ended_by_itself_counts(tmp_path: Path) -> None:
    chosen = options(tmp_path)
    study = benchmark.study(chosen)
    store = study.open_store()
    asked = jobs_of(study)[0]
    for steps, ending in ((100, "patience"), (5, "max_steps"), (200, "patience"), (6, "max_steps")):
        store.put({**asked, "max_steps": steps}, {"ending": ending, "steps": steps})
    ((run,),) = retrieval_study.finished_runs(store).values()
    assert run.found["steps"] == 200


def test_other_data_and_backbones_have_results_of_their_own(tmp_path: Path) -> None:
    chosen = options(tmp_path, data="cars196", backbone="resnet20", folds="0", poolings="gap")
    benchmark.run(chosen)
    assert [path.name for path in chosen.results.glob("*.json")] == ["benchmark_cars196_resnet20.json"]
    drawn = draw_plots(benchmark.EXPERIMENT, chosen.results, chosen.images, ["benchmark_cars196_resnet20"])
    assert chosen.images / "benchmark_cars196_resnet20_summary.png" in drawn
    assert value_of(chosen, "benchmark_cars196_resnet20")["data"] == "cars196"


def test_the_conventional_protocol_trains_on_all_classes(tmp_path: Path) -> None:
    chosen = options(tmp_path, losses="", protocol="conventional")
    benchmark.run(chosen)
    benchmark.run(replace(chosen, settings=replace(chosen.settings, losses="libc", poolings="gap,gsp")))
    value = value_of(chosen, "benchmark_cub_conventional")
    names = ["xbm+c1 gap+gmp", "xbm+c1 gmp+gsp", "libc gap", "libc gsp"]
    assert [row["variant"] for row in value["variants"]] == names
    for row in value["variants"]:
        assert (row["joined"], row["runs"]) == (None, 1)
        # What is watched is the test set.
        assert row["validation_map"] == pytest.approx(row["p1"]["mean"])


def test_mu_and_screening_are_measured_on_validation_classes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trained: list[str]
) -> None:
    monkeypatch.setattr(mu, "MUS", mu.MUS[:2])
    monkeypatch.setattr(mu, "MOST_SMALL", mu.MUS[0])
    monkeypatch.setattr(mu, "VARIANTS", mu.VARIANTS[:3])
    chosen = replace(options(tmp_path), settings=StudySettings())
    mu.EXPERIMENT.run(chosen)
    assert trained == ["c2 gap 0 0", "c2 gsp mu 0.1 0 0", "c2 gsp mu 0.2 0 0"]
    value = value_of(chosen, "mu")
    assert (value["protocol"], len(value["variants"])) == ("tuning", 3)
    monkeypatch.setattr(screening, "LOSSES", ("c2",))
    monkeypatch.setattr(screening, "GRID_PROTOTYPES", (16,))
    monkeypatch.setattr(screening, "GRID_EPSILONS", (0.5, 1.0))
    screening.EXPERIMENT.run(replace(chosen, settings=screening.ScreeningSettings(part="grid")))
    # A point of the factorial that lies on the grid is trained once, under one name.
    assert trained[3:] == [
        "c2 gsp m 16, mu 0.3, epsilon 0.5, zsr 0.1 0 0",
        "c2 gsp m 16, mu 0.3, epsilon 1, zsr 0.1 0 0",
    ]
    screening.EXPERIMENT.run(replace(chosen, settings=screening.ScreeningSettings(part="factorial")))
    assert len(trained) == 3 + 2 + 7
    assert len(value_of(chosen, "screening")["variants"]) == 10


@pytest.mark.parametrize("name", ["benchmark_cub", "benchmark_cub_conventional", "components", "mu", "screening"])
def test_results_of_the_project_are_written_anew_as_they_are(name: str, project: Path, tmp_path: Path) -> None:
    results = tmp_path / "results"
    results.mkdir()
    results.joinpath(f"{name}.json").write_bytes((project / "results" / f"{name}.json").read_bytes())
    kind = name.partition("_")[0]
    module = {"benchmark": benchmark, "components": components, "mu": mu, "screening": screening}[kind]
    settings = module.EXPERIMENT.settings(train=False, **({"protocol": "conventional"} if "conv" in name else {}))
    chosen = RunOptions(results=results, work=tmp_path / "work", images=tmp_path / "images", settings=settings)
    module.EXPERIMENT.run(chosen)
    before, after = (read_result(folder / f"{name}.json") for folder in (project / "results", results))
    assert after["value"]["runs"] == before["value"]["runs"]
    assert after == before


def test_trainings_of_the_project_are_those_that_are_asked_for(project: Path, tmp_path: Path) -> None:
    value = read_result(project / "results" / "benchmark_cub.json")["value"]
    known = {run["asked"]["variant"]: run["asked"] for run in value["runs"]}
    variants = [*benchmark.wanted_variants(BenchmarkSettings(variants="paper;search", poolings="all"))]
    study = benchmark.study(RunOptions(device="cuda"), variants)
    for asked in jobs_of(study):
        assert {**known[asked["variant"]], "weights": None, "fold": asked["fold"], "seed": asked["seed"]} == asked
