"""The benchmark: the paper's settings, paired differences, and a study that goes on where it was left."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from finished_runs import finished
from gspool.evaluation import RunResult, retrieval_metrics
from gspool.experiments import mu
from gspool.experiments.benchmark import experiment as benchmark
from gspool.experiments.benchmark import runs as benchmark_runs
from gspool.experiments.benchmark.arms import LOSSES, Arm, paper_arms, pooling_table_arms, settings_of
from gspool.experiments.benchmark.experiment import BenchmarkSettings, render, run, study_of
from gspool.experiments.benchmark.figures import arm_figures, paired_difference
from gspool.experiments.benchmark.joined import joined_figures, joined_of
from gspool.experiments.benchmark.missing import unfinished
from gspool.experiments.benchmark.paper import conventional_values, paper_values, pooling_table_value
from gspool.experiments.benchmark.runs import fingerprint, jobs_of
from gspool.experiments.benchmark.search import FAST, search_arms
from gspool.experiments.benchmark.stand_in import stand_in
from gspool.experiments.benchmark.store import WIDEST, Run, Store
from gspool.experiments.benchmark.written import take_over
from gspool.experiments.experiment import NOT_RUN, RunOptions
from gspool.experiments.resident import Outcome
from gspool.provenance import read_result
from gspool.training.build import build_model

pytestmark = pytest.mark.usefixtures("one_thread")


def options(folder: Path, **chosen) -> RunOptions:
    settings = BenchmarkSettings(losses="c2", **chosen)
    return RunOptions(
        seeds=(0,),
        results=folder / "results",
        work=folder / "work",
        images=folder / "images",
        quick=True,
        settings=settings,
    )


def test_the_papers_settings() -> None:
    pair = settings_of(Arm("c2", "gsp"), "cub", "fair", "keras/resnet50", "w.safetensors", 7, "bf16-mixed")
    assert (pair.data.classes_per_batch, pair.data.images_per_class, pair.schedule.warmup_epochs) == (8, 4, 0.0)
    assert pair.model.pooling_options == {"prototypes": 64, "mu": 0.3, "epsilon": 5.0, "warm_start": 1024}
    assert (pair.optimiser.lr, pair.optimiser.weight_decay, pair.trainer.patience) == (1e-5, 1e-4, 15)
    assert (pair.loss.zsr, pair.model.freeze, pair.trainer.seed) == (0.1, "batchnorm", 7)
    assert pair.model.backbone_options == {"weights": "w.safetensors"}
    proxy = settings_of(Arm("panchor", "gsp"), "sop", "fair", "bninception", None, 0, "32-true")
    assert (proxy.data.classes_per_batch, proxy.data.images_per_class, proxy.schedule.warmup_epochs) == (32, 1, 1.0)
    assert (proxy.model.pooling_options["epsilon"], proxy.model.pooling_options["prototypes"]) == (0.5, 128)
    assert (proxy.optimiser.proxies, proxy.optimiser.lr, proxy.trainer.evaluate_every) == (100.0, 5e-6, 1000)
    plain = settings_of(Arm("pnca", "gap"), "cub", "fair", "keras/resnet50", None, 0, "32-true")
    assert (plain.model.pooling_options, plain.loss.zsr) == ({}, 0.0)


def test_the_other_protocols() -> None:
    tuning = settings_of(Arm("c2", "gsp"), "cub", "tuning", "keras/resnet50", None, 0, "32-true")
    assert (tuning.trainer.patience, tuning.trainer.evaluate_every) == (10, 100)
    assert settings_of(Arm("c2", "gsp"), "sop", "tuning", "keras/resnet50", None, 0, "32-true").trainer.patience == 7
    usual = settings_of(Arm("xbm+c1", "gap"), "cars196", "conventional", "keras/resnet50", None, 0, "32-true")
    assert (usual.data.batch_size, usual.optimiser.weight_decay, usual.optimiser.lr) == (112, 4e-4, 1e-4)
    assert (usual.trainer.monitor, usual.trainer.monitor_split, usual.schedule.name) == ("p@1", "test", "plateau")
    inception = settings_of(Arm("xbm+c1", "gap"), "cub", "conventional", "bninception", None, 0, "32-true")
    assert (inception.data.batch_size, inception.optimiser.weight_decay, inception.model.dim) == (128, 1e-4, 512)


def test_an_arm_changes_what_it_says_and_nothing_else() -> None:
    arm = Arm("c2", "gsp", "sharp", {"epsilon": 20.0}, FAST, zsr=0.0, changes={"optimiser__lr": 1e-4})
    changed = settings_of(arm, "cub", "fair", "keras/resnet50", None, 0, "32-true")
    paper = settings_of(Arm("c2", "gsp"), "cub", "fair", "keras/resnet50", None, 0, "32-true")
    assert changed.model.pooling_options == {**paper.model.pooling_options, "epsilon": 20.0}
    assert (changed.optimiser.multipliers, changed.loss.zsr, changed.optimiser.lr) == (FAST, 0.0, 1e-4)
    changed.model.pooling_options["epsilon"], changed.optimiser.multipliers = 5.0, {}
    changed.loss.zsr, changed.optimiser.lr = 0.1, 1e-5
    assert changed == paper


def test_settings_that_differ_have_other_fingerprints_and_a_moved_file_has_not() -> None:
    arm = Arm("c2", "gsp")
    here, there = (settings_of(arm, "cub", "fair", "keras/resnet50", path, 0, "32-true") for path in ("a/w.s", "b/w.s"))
    assert fingerprint(here, arm) == fingerprint(there, arm)
    there.model.pooling_options["epsilon"] = 6.0
    assert fingerprint(here, arm) != fingerprint(there, arm)
    assert fingerprint(here, arm) != fingerprint(here, replace(arm, token_start=4))


def test_every_row_of_the_paper_is_there() -> None:
    assert paper_values("cub", "c2", "gap").map == 20.58
    assert paper_values("cars196", "panchor", "gsp").p1_joined == 86.46
    assert paper_values("sop", "xbm+c1", "gsp").map_joined == 50.65
    assert paper_values("inshop", "triplet", "gsp").map == 55.54
    assert all(paper_values("cub", loss, pooling) for loss in LOSSES for pooling in ("gap", "gsp"))
    assert pooling_table_value("c2", "cbam") == 18.45
    assert pooling_table_value("ms", "cbam") is None
    # The paper adds max pooling to both layers in that protocol.
    assert conventional_values("inshop", "bninception", "xbm+c1", "gap+gmp").map == 61.39
    assert conventional_values("inshop", "bninception", "xbm+c1", "gap") is None
    assert conventional_values("inshop", "bninception", "c2", "gap+gmp") is None


def test_every_layer_of_the_pooling_table_can_be_made_and_has_its_value() -> None:
    for arm in pooling_table_arms(("c2",)):
        settings = settings_of(arm, "cub", "fair", "resnet20", None, 0, "32-true")
        model = build_model(settings)
        assert model.out_dim == (8192 if arm.variant == "64x128" else 128), arm.name
        assert pooling_table_value("c2", arm.pooling, arm.variant) is not None, arm.name


def test_names_of_arms_are_unique() -> None:
    names = [arm.name for arm in [*paper_arms(LOSSES), *search_arms(LOSSES)]]
    assert len(set(names)) == len(names)


def test_paired_differences_against_numpy() -> None:
    generator = np.random.default_rng(0)
    places = [(fold, seed) for fold in range(4) for seed in range(3)]
    gap, gsp = generator.normal(0.2, 0.01, 12), generator.normal(0.21, 0.01, 12)
    ours = finished(Arm("c2", "gsp"), dict(zip(places, gsp, strict=True)))
    theirs = finished(Arm("c2", "gap"), dict(zip(places[::-1], gap[::-1], strict=True)))
    found = paired_difference(ours, theirs)
    differences = 100 * (gsp - gap)
    assert found.mean == pytest.approx(differences.mean())
    assert found.std == pytest.approx(differences.std(ddof=1))
    assert found.error == pytest.approx(differences.std(ddof=1) / np.sqrt(12))
    assert (found.pairs, found.ahead) == (12, int((differences > 0).sum()))
    assert paired_difference(ours[:2], theirs[:3]) is None


def test_figures_of_an_arm() -> None:
    gap = finished(Arm("c2", "gap"), {(0, 0): 0.2, (1, 0): 0.22})
    watched = {(0, 0): 0.3, (1, 0): 0.5, (2, 0): 0.46}
    gsp = finished(Arm("c2", "gsp"), {(0, 0): 0.23, (1, 0): 0.23, (2, 0): 0.5}, watched)
    figures = arm_figures(gsp, gap)
    assert figures["map"]["mean"] == pytest.approx(32.0)
    assert figures["difference_from_gap"]["mean"] == pytest.approx(2.0)
    assert figures["difference_from_gap"]["pairs"] == 2
    assert figures["validation_map"] == pytest.approx(42.0)
    assert (figures["folds"], figures["endings"]["patience"]) == ([0, 1, 2], 3)
    assert arm_figures(gap, gap)["difference_from_gap"] is None


def test_joined_embeddings_need_every_fold_of_a_repeat() -> None:
    labels = torch.arange(12) % 4
    results: dict[tuple[int, int], RunResult | None] = {}
    for fold in range(2):
        for seed in range(2):
            noise = torch.randn(12, 3, generator=torch.Generator().manual_seed(10 * fold + seed))
            results[fold, seed] = RunResult(noise, retrieval_metrics(noise, labels))
    found = joined_figures(results, 2, labels, None)
    assert found is not None
    assert found["combinations"] == 4
    expected = []
    for first in range(2):
        for second in range(2):
            parts = [results[0, first].embeddings, results[1, second].embeddings]
            joined = np.concatenate([part / part.norm(dim=1, keepdim=True) for part in parts], axis=1)
            expected.append(100 * retrieval_metrics(torch.tensor(joined), labels)["map@r"])
    assert found["map_512D"]["mean"] == pytest.approx(np.mean(expected))
    assert found["map_512D"]["std"] == pytest.approx(np.std(expected))
    assert (found["repeats"], found["combinations"]) == (2, 4)
    # A repeat that lacks a fold does not count, and the other one still does.
    part = joined_figures({**results, (1, 1): None}, 2, labels, None)
    assert part is not None
    assert (part["repeats"], part["combinations"]) == (1, 1)
    assert part["map_512D"]["mean"] == pytest.approx(expected[0])
    assert joined_figures({**results, (1, 1): None, (0, 0): None}, 2, labels, None) is None
    assert joined_figures(results, 3, labels, None) is None


def test_what_was_joined_is_not_joined_again_until_a_training_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = options(tmp_path)
    store, study = Store(tmp_path / "store"), study_of(chosen)
    labels = torch.arange(12) % 4
    for job in jobs_of(study, stand_in().train.labels, chosen):
        noise = torch.randn(12, 3, generator=torch.Generator().manual_seed(job.asked["fold"]))
        metrics = dict(retrieval_metrics(noise, labels))
        store.put(job, Outcome(metrics, None, 4, 4, "patience", None, 1.0, 1.0, [], {}, noise), {})
    runs = [each for each in store.runs() if each.asked["arm"] == "c2 gap"]
    first = joined_of(store, runs, 4, labels, None)
    assert first is not None
    with monkeypatch.context() as patched:
        patched.setattr("gspool.experiments.benchmark.joined.fair_average", lambda *_: pytest.fail("joined again"))
        assert joined_of(Store(store.folder), runs, 4, labels, None) == first
    better = {**runs[-1].found, "metrics": dict.fromkeys(runs[-1].found["metrics"], 1.0)}
    other = [*runs[:-1], Run(runs[-1].asked, better)]
    # Made again under the same name, with other figures: joined again, to the same embeddings here.
    assert len(store.joined.entries) == 1
    assert joined_of(store, other, 4, labels, None) == first
    assert len(store.joined.entries) == 2
    store.path(runs[0].asked).unlink()
    assert joined_of(store, runs, 4, labels, None) is None


def test_arms_of_one_fold_and_seed_see_the_same_and_folds_differ(tmp_path: Path) -> None:
    chosen = options(tmp_path)
    study = study_of(replace(chosen, seeds=(0, 1)))
    jobs = jobs_of(study, stand_in().train.labels, chosen)
    assert len(jobs) == 2 * 4 * 2
    by_place: dict[tuple[int, int], set[int]] = {}
    for job in jobs:
        by_place.setdefault((job.asked["fold"], job.asked["seed"]), set()).add(job.settings.trainer.seed)
        assert sorted([*job.train_classes, *job.validation_classes]) == list(range(12))
        assert job.validation_classes == list(range(3 * job.asked["fold"], 3 * job.asked["fold"] + 3))
    assert all(len(seeds) == 1 for seeds in by_place.values())
    assert len(set().union(*by_place.values())) == 8


def test_a_study_goes_on_where_it_was_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first = options(tmp_path, folds="0,2")
    run(first)
    value = read_result(first.results / "benchmark_cub.json")["value"]
    assert {arm["arm"]: arm["folds"] for arm in value["arms"]} == {"c2 gap": [0, 2], "c2 gsp": [0, 2]}
    assert all(arm["joined"] is None for arm in value["arms"])
    made: list[str] = []
    whole = benchmark_runs.train_all
    monkeypatch.setattr(
        benchmark_runs,
        "train_all",
        lambda jobs, *rest, **more: (
            made.extend(f"{job.asked['arm']} {job.asked['fold']}" for job in jobs) or whole(jobs, *rest, **more)
        ),
    )
    run(options(tmp_path))
    assert sorted(made) == ["c2 gap 1", "c2 gap 3", "c2 gsp 1", "c2 gsp 3"]
    value = read_result(first.results / "benchmark_cub.json")["value"]
    assert all(arm["joined"]["combinations"] == 1 for arm in value["arms"])
    assert value["arms"][1]["difference_from_gap"]["pairs"] == 4
    left = unfinished(first.results)
    assert left.startswith("40 of 48 trainings of C2 and ProxyNCA++ with GAP and GSP; 96 of 96 trainings of the")
    assert left.endswith("88 of 88 trainings of the search; 6 of 6 trainings of the conventional protocol")
    shown = render(first.results)
    assert "20.58" in shown
    assert "27.12" in shown
    assert "gspool reproduce benchmark" in shown
    assert "images/benchmark_cub.png" in shown
    assert (first.images / "benchmark_cub.png").stat().st_size > 10_000
    # In another folder of finished trainings, those of the result are taken over and none is made again.
    made.clear()
    run(replace(options(tmp_path), work=tmp_path / "elsewhere"))
    assert made == []
    capsys.readouterr()


def test_a_result_does_not_change_where_its_embeddings_are_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = replace(options(tmp_path), seeds=(0, 1))
    monkeypatch.setattr(benchmark, "find_spec", lambda name: None)
    run(chosen)
    path = chosen.results / "benchmark_cub.json"
    before = path.read_text()
    assert [arm["joined"]["combinations"] for arm in read_result(path)["value"]["arms"]] == [16, 16]
    elsewhere = replace(chosen, work=tmp_path / "clone", settings=replace(chosen.settings, train=False))
    # Another study may have taken over some of its trainings there.
    last = read_result(path)["value"]["runs"][-1]
    benchmark.store_of(study_of(elsewhere), elsewhere).ledger.put(last["asked"], last["found"])
    run(elsewhere)
    assert path.read_text() == before
    assert "left out" not in capsys.readouterr().out
    # A repeat that lacks folds cannot be joined: what joined models reach is still known.
    run(replace(elsewhere, seeds=(2,), settings=replace(chosen.settings, poolings="gsp", folds="0")))
    assert [arm["joined"]["repeats"] for arm in read_result(path)["value"]["arms"]] == [2, 2]
    assert read_result(path)["value"]["arms"][1]["runs"] == 9
    # All of it can: of four repeats, only one has its embeddings here.
    run(replace(elsewhere, seeds=(2,), settings=replace(chosen.settings, poolings="gsp")))
    assert [arm["joined"]["repeats"] for arm in read_result(path)["value"]["arms"]] == [2, 1]
    shown = capsys.readouterr().out
    assert "c2 gsp: 512D figures of 2 repeats are left out, and 1 remains: their trainings changed" in shown
    assert "c2 gap: 512D" not in shown


def test_what_joined_models_reach_is_dropped_where_a_training_was_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = options(tmp_path)
    monkeypatch.setattr(benchmark, "find_spec", lambda name: None)
    run(chosen)
    store = benchmark.store_of(study_of(chosen), chosen)
    (again,) = (each for each in store.runs() if each.asked["arm"] == "c2 gap" and each.place == (3, 0))
    better = {**again.found, "metrics": {**again.found["metrics"], "map@r": 0.9}}
    elsewhere = replace(chosen, work=tmp_path / "clone", settings=replace(chosen.settings, train=False))
    benchmark.store_of(study_of(chosen), elsewhere).ledger.put(again.asked, better)
    run(elsewhere)
    arms = read_result(chosen.results / "benchmark_cub.json")["value"]["arms"]
    assert [arm["joined"] is None for arm in arms if arm["arm"] == "c2 gap"] == [True]
    assert [arm["joined"] is None for arm in arms if arm["arm"] == "c2 gsp"] == [False]
    assert "c2 gap: 512D figures of 1 repeat are left out: their trainings changed" in capsys.readouterr().out


def test_a_damaged_result_is_set_aside_and_measured_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chosen = options(tmp_path, folds="0")
    run(chosen)
    path = chosen.results / "benchmark_cub.json"
    whole = read_result(path)
    for number, text in enumerate((path.read_text()[:1000], '{"value": {"runs": []}}'), start=1):
        path.write_text(text)
        run(chosen)
        aside = path.with_name("benchmark_cub.json.damaged" + ("" if number == 1 else f"-{number}"))
        assert aside.read_text() == text
        assert f"it is {aside.name} now" in capsys.readouterr().out
        assert read_result(path)["value"] == whole["value"]
    path.write_text(json.dumps({**whole, "value": {"runs": []}}))
    run(chosen)
    assert "benchmark_cub.json holds no trainings; it is benchmark_cub.json.damaged-3 now" in capsys.readouterr().out
    assert read_result(path)["value"] == whole["value"]


def test_nothing_of_a_tiny_version_is_taken_for_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chosen = options(tmp_path, folds="0")
    run(chosen)
    path, store = chosen.results / "benchmark_cub.json", Store(tmp_path / "measured")
    take_over(path, study_of(chosen), store, quick=False)
    assert store.runs() == []
    assert not path.exists()
    assert "benchmark_cub.json is of a tiny version, which measures nothing; it is" in capsys.readouterr().out


def test_a_backbone_without_its_imagenet_weights_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"keras/resnet50 would begin with random weights.*--weights"):
        run(replace(options(tmp_path), quick=False, root=tmp_path / "nowhere"))


def test_a_training_that_time_cut_short_is_made_again(tmp_path: Path) -> None:
    chosen = options(tmp_path, folds="0")
    run(chosen)
    path = chosen.results / "benchmark_cub.json"
    whole = read_result(path)["value"]
    store = benchmark.store_of(study_of(chosen), chosen)
    (cut,) = (each for each in store.runs() if each.asked["arm"] == "c2 gsp")
    store.ledger.put(cut.asked, {**cut.found, "ending": "time", "metrics": {"map@r": 0.0, "p@1": 0.0, "r@1": 0.0}})
    run(chosen)
    again = read_result(path)["value"]
    assert [arm["map"] for arm in again["arms"]] == [arm["map"] for arm in whole["arms"]]
    assert all(arm["endings"]["time"] == 0 for arm in again["arms"])


def test_the_conventional_protocol_reports_its_best_run(tmp_path: Path) -> None:
    chosen = options(tmp_path, protocol="conventional")
    # The paper's only loss there is taken where none is named.
    chosen = replace(chosen, seeds=(0, 1), settings=replace(chosen.settings, losses=""))
    run(chosen)
    value = read_result(chosen.results / "benchmark_cub_conventional.json")["value"]
    for arm in value["arms"]:
        own = [each["found"]["metrics"] for each in value["runs"] if each["asked"]["arm"] == arm["arm"]]
        assert len(own) == 2
        assert arm["best_run"]["metrics"] == max(own, key=lambda metrics: metrics["p@1"])
    assert "66.68" in render(chosen.results)


def test_another_backbone_and_data_set_have_results_of_their_own(tmp_path: Path) -> None:
    chosen = options(tmp_path, folds="0")
    run(chosen)
    kept = (chosen.results / "benchmark_cub.json").read_bytes()
    other = replace(chosen, settings=replace(chosen.settings, backbone="resnet20"))
    run(other)
    assert (chosen.results / "benchmark_cub.json").read_bytes() == kept
    assert read_result(chosen.results / "benchmark_cub_resnet20.json")["value"]["backbone"] == "resnet20"
    assert "**cub, fair protocol, resnet20.**" in render(chosen.results)
    # A file that was put in the place of another is not taken for it.
    (chosen.results / "benchmark_cub_resnet20.json").write_bytes(kept)
    with pytest.raises(ValueError, match=r"is of backbone keras/resnet50, and these trainings are of data cub"):
        run(other)


def test_weights_are_told_apart_by_what_is_in_them(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    first, copy, other = tmp_path / "w.safetensors", tmp_path / "renamed.safetensors", tmp_path / "b" / "w.safetensors"
    other.parent.mkdir()
    first.write_bytes(b"weights")
    copy.write_bytes(b"weights")
    other.write_bytes(b"others")
    assert store.name_of_weights(first) == store.name_of_weights(copy) == "w.safetensors"
    assert store.name_of_weights(other).startswith("w.safetensors ")
    assert Store(tmp_path / "store").name_of_weights(other) == store.name_of_weights(other)
    assert len(store.name_of_weights(other)) == len("w.safetensors 01234567")


def test_a_run_that_its_number_of_steps_ended_does_not_replace_one_that_ended_by_itself(tmp_path: Path) -> None:
    store = Store(tmp_path)
    (whole,) = finished(Arm("c2", "gap"), {(0, 0): 0.2})
    store.ledger.put(whole.asked, whole.found)
    store.ledger.put({**whole.asked, "settings": "capped"}, {**whole.found, "ending": "max_steps", "steps": 10})
    (counted,) = store.runs()
    assert counted.found["ending"] == "patience"


def test_nothing_measured_is_said_so(tmp_path: Path) -> None:
    assert render(tmp_path) == NOT_RUN


def test_wrong_choices_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="benchmarks are cub, cars196, sop, inshop, got 'birds'"):
        study_of(options(tmp_path, data="birds"))
    with pytest.raises(ValueError, match="no setting 'epsilon 21'; its settings are epsilon 20;"):
        study_of(options(tmp_path, arms="search", variants="epsilon 20;epsilon 21"))
    with pytest.raises(ValueError, match="folds 0 to 3, got '4'"):
        study_of(options(tmp_path, folds="4"))
    with pytest.raises(ValueError, match="tuning protocol has one fold, 0, got '1'"):
        mu.run(options(tmp_path, folds="1"))
    with pytest.raises(ValueError, match="protocols are fair, conventional and tuning, got 'unfair'"):
        settings_of(Arm("c2", "gsp"), "cub", "unfair", "keras/resnet50", None, 0, "32-true")


def test_a_gallery_is_kept_beside_its_queries(tmp_path: Path) -> None:
    chosen = options(tmp_path)
    job = jobs_of(study_of(chosen), stand_in().train.labels, chosen)[0]
    outcome = Outcome(
        {"map@r": 0.5, "p@1": 1.0}, None, 4, 4, "max_steps", None, 1.0, 1.0, [], {}, torch.ones(3, 2), torch.eye(2)
    )
    store = Store(tmp_path / "store")
    store.put(job, outcome, {"device": "a processor"})
    (again,) = Store(tmp_path / "store").runs()
    result = Store(tmp_path / "store").result(again)
    assert result is not None
    assert result.gallery is not None
    assert torch.equal(result.gallery, torch.eye(2))
    assert torch.equal(result.embeddings, torch.ones(3, 2))
    assert result.metrics == {"map@r": 0.5, "p@1": 1.0}
    assert again.found["origin"] == {"device": "a processor"}


def test_wide_embeddings_count_and_are_not_kept(tmp_path: Path) -> None:
    chosen = options(tmp_path)
    job = jobs_of(study_of(chosen), stand_in().train.labels, chosen)[0]
    metrics = {"map@r": 0.5, "p@1": 1.0}
    wide = Outcome(metrics, None, 4, 4, "max_steps", None, 1.0, 1.0, [], {}, torch.ones(3, WIDEST + 1))
    store = Store(tmp_path / "store")
    store.put(job, wide, {"device": "a processor"})
    (run_of_it,) = store.runs()
    assert run_of_it.found["metrics"] == metrics
    assert store.result(run_of_it) is None
    assert [file.name for file in store.folder.iterdir()] == ["runs.jsonl"]


def test_of_several_runs_the_last_whole_one_counts_and_else_the_longest(tmp_path: Path) -> None:
    store = Store(tmp_path)

    def put(settings: str, steps: int, value: float, ending: str) -> list[float]:
        (entry,) = finished(Arm("c2", "gap"), {(0, 0): value})
        store.ledger.put({**entry.asked, "settings": settings}, {**entry.found, "steps": steps, "ending": ending})
        return [each.found["metrics"]["map@r"] for each in store.runs()]

    assert put("first", 20, 0.3, "time") == [0.3]
    assert put("second", 10, 0.9, "time") == [0.3]
    assert put("third", 5, 0.4, "patience") == [0.4]
    assert put("fourth", 4, 0.6, "max_steps") == [0.4]
    assert put("later", 4, 0.5, "patience") == [0.5]
    assert put("fifth", 99, 0.6, "time") == [0.5]


def test_some_settings_of_the_search_can_be_chosen(tmp_path: Path) -> None:
    study = study_of(options(tmp_path, arms="both", variants="learned; epsilon 20"))
    assert [arm.name for arm in study.arms] == ["c2 gap", "c2 gsp", "c2 gsp epsilon 20", "c2 gsp learned"]


def test_the_experiment_names_its_command() -> None:
    chosen = RunOptions(settings=BenchmarkSettings(losses="ms", processes=4))
    assert benchmark.EXPERIMENT.command(chosen) == ("gspool reproduce benchmark --device cpu --losses ms --processes 4")
