"""What is trained first, what is never trained twice, and how finished trainings travel."""

from __future__ import annotations

import itertools
import json
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from gspool.experiments import components, mu, screening, screening_design
from gspool.experiments.benchmark import experiment as benchmark
from gspool.experiments.benchmark import pieces
from gspool.experiments.benchmark import runs as benchmark_runs
from gspool.experiments.benchmark import study as benchmark_study
from gspool.experiments.benchmark.arms import Arm, paper_arms
from gspool.experiments.benchmark.experiment import BenchmarkSettings, run, store_of, study_of
from gspool.experiments.benchmark.runs import Study, jobs_of, train_missing
from gspool.experiments.benchmark.search import search_arms
from gspool.experiments.benchmark.stand_in import stand_in
from gspool.experiments.benchmark.store import Store
from gspool.experiments.benchmark.study import StudySettings
from gspool.experiments.experiment import RunOptions
from gspool.experiments.resident import Job
from gspool.provenance import read_result

pytestmark = pytest.mark.usefixtures("one_thread")
LABELS = torch.arange(20).repeat_interleave(3)


@pytest.fixture
def options(tmp_path: Path) -> RunOptions:
    return RunOptions(
        seeds=(0,),
        results=tmp_path / "results",
        work=tmp_path / "work",
        images=tmp_path / "images",
        quick=True,
        settings=BenchmarkSettings(losses="c2", folds="0"),
    )


def planned(arms: list[Arm], protocol: str = "fair", folds: int = 4) -> list[Job]:
    study = Study("cub", protocol, tuple(arms), tuple(range(folds)), (0, 1, 2))
    return jobs_of(study, LABELS, RunOptions())


def test_what_is_compared_begins_with_one_embedding() -> None:
    arms = [Arm("pnca", "gap"), Arm("pnca", "gsp"), Arm("pnca", "gsp", "few", {"prototypes": 4}), Arm("c2", "gap")]
    jobs = {job.asked["arm"]: job for job in planned(arms, folds=1) if job.asked["seed"] == 1}
    like = jobs["pnca gap"].embedding_like
    assert like is not None
    assert like.model.pooling == "gsp"
    assert like.trainer.seed == jobs["pnca gsp"].settings.trainer.seed
    assert jobs["pnca gsp few"].embedding_like is not None
    assert jobs["pnca gsp"].embedding_like is None
    assert jobs["c2 gap"].embedding_like is not None
    # What was trained before with an embedding of its own is not taken for this.
    gap = jobs["pnca gap"]
    assert gap.asked["settings"] != benchmark_runs.fingerprint(gap.settings, Arm("pnca", "gap"))
    # Studies of one layer on validation classes have no pairs to keep together.
    assert all(job.embedding_like is None for job in planned(arms, "tuning", folds=1))


def test_wherever_the_paper_s_plan_is_cut_it_is_balanced() -> None:
    jobs = planned(paper_arms(("c2", "pnca")))
    assert len(jobs) == 48
    for count in range(1, 49):
        done = jobs[:count]
        by_arm = Counter(job.asked["arm"] for job in done)
        assert max(by_arm.values()) - min(by_arm[arm.name] for arm in paper_arms(("c2", "pnca"))) <= 1
        places = Counter((job.asked["loss"], job.asked["fold"], job.asked["seed"]) for job in done)
        assert sum(number == 1 for number in places.values()) <= 1, "at most one training stands without its pair"
        repeats = Counter(job.asked["seed"] for job in done)
        assert all(repeats[seed] == 16 for seed in range(max(repeats)))


def test_settings_beyond_the_paper_s_come_after_it_in_every_repeat() -> None:
    jobs = planned([*paper_arms(("c2",)), *search_arms(("c2",))[:2]])
    told = [(job.asked["seed"], bool(job.asked["variant"]), job.asked["fold"]) for job in jobs]
    assert told == sorted(told)
    assert [job.asked["arm"] for job in jobs[:2]] == ["c2 gap", "c2 gsp"]


def test_studies_share_trainings_of_the_same_settings() -> None:
    paper = {job.asked["settings"] for job in planned([Arm("c2", "gsp")], "tuning", 1)}
    named = {arm.name: arm for arm in (*mu.ARMS, *screening.grid_arms(), *screening.factorial_arms())}
    for name in ("c2 gsp mu 0.3", "c2 gsp m 64, mu 0.3, epsilon 5, zsr 0.1"):
        assert {job.asked["settings"] for job in planned([named[name]], "tuning", 1)} == paper
    other = planned([named["c2 gsp mu 0.5"]], "tuning", 1)
    assert paper.isdisjoint(job.asked["settings"] for job in other)
    # The same name is the same training: GAP of mu and of screening, and components' of the benchmark's search.
    assert named["c2 gap"] == mu.ARMS[0] == Arm("c2", "gap")
    assert {arm.name for arm in components.ARMS} >= {"c2 gap", "c2 gsp"}
    assert components.ARMS[1] in search_arms(("c2",))


def test_what_one_study_trained_another_takes_over(options: RunOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mu, "MUS", (0.3, 0.9))
    monkeypatch.setattr(mu, "ARMS", (Arm("c2", "gap"), *(Arm("c2", "gsp", f"mu {m:g}", {"mu": m}) for m in (0.3, 0.9))))
    monkeypatch.setattr(screening_design, "LOSSES", ("c2",))
    monkeypatch.setattr(screening_design, "GRID_PROTOTYPES", (64,))
    monkeypatch.setattr(screening_design, "GRID_EPSILONS", (5.0, 10.0))
    made: list[str] = []
    whole = benchmark_runs.train_all
    monkeypatch.setattr(
        benchmark_runs,
        "train_all",
        lambda jobs, *rest, **more: made.extend(job.asked["arm"] for job in jobs) or whole(jobs, *rest, **more),
    )
    mu.run(replace(options, settings=StudySettings(folds="0")))
    assert made == ["c2 gap", "c2 gsp mu 0.3", "c2 gsp mu 0.9"]
    made.clear()
    screening.run(replace(options, settings=screening.ScreeningSettings(folds="0", part="grid")))
    assert made == ["c2 gsp m 64, mu 0.3, epsilon 10, zsr 0.1"]
    found = {arm["arm"]: arm for arm in read_result(options.results / "screening.json")["value"]["arms"]}
    shared = found["c2 gsp m 64, mu 0.3, epsilon 5, zsr 0.1"]
    (curve,) = (
        arm for arm in read_result(options.results / "mu.json")["value"]["arms"] if arm["arm"] == "c2 gsp mu 0.3"
    )
    assert shared["map"] == curve["map"]


def test_pieces_are_small_and_bring_everything(tmp_path: Path, options: RunOptions) -> None:
    run(replace(options, settings=replace(options.settings, folds="0,1")))
    here = store_of(study_of(options), options).folder
    size = max(file.stat().st_size for file in here.glob("*.safetensors"))
    limit = 2 * (size + 1024) + pieces.TRAILER
    written = pieces.pack(here, tmp_path / "out", limit)
    assert [path.name for path in written] == ["runs.jsonl", "embeddings-00.tar", "embeddings-01.tar"]
    assert all(path.stat().st_size <= limit for path in written[1:])
    there = tmp_path / "there"
    assert pieces.unpack(there, tmp_path / "out") == 4
    packed = {"runs.jsonl", *(file.name for file in here.glob("*.safetensors"))}
    assert {file.name for file in there.iterdir()} == packed
    assert [Store(there).result(each) is not None for each in Store(there).runs()] == [True] * 4
    assert Store(there).ledger.entries == Store(here).ledger.entries
    assert pieces.unpack(there, tmp_path / "out") == 0


def test_a_whole_training_replaces_one_that_was_cut_short(tmp_path: Path, options: RunOptions) -> None:
    run(options)
    here = store_of(study_of(options), options).folder
    pieces.pack(here, tmp_path / "out", 2**20)
    cut = Store(here).runs()[0]
    Store(here).ledger.put(cut.asked, {**cut.found, "ending": "time"})
    Store(here).path(cut.asked).write_bytes(b"of the one that was cut")
    assert pieces.unpack(here, tmp_path / "out") == 1
    assert Store(here).get(cut.asked) == cut.found
    assert Store(here).result(cut) is not None


def test_what_cannot_be_packed_is_said(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"holds no runs\.jsonl"):
        pieces.pack(tmp_path, tmp_path / "out", 2**20)
    (tmp_path / "runs.jsonl").write_text("")
    (tmp_path / "large.safetensors").write_bytes(bytes(20_000))
    with pytest.raises(ValueError, match=r"large.safetensors has 20992 bytes, and a piece may have 9760"):
        pieces.pack(tmp_path, tmp_path / "out", 20_000)
    old = time.time() + 10
    assert [path.name for path in pieces.pack(tmp_path, tmp_path / "out", 2**20, newer_than=old)] == ["runs.jsonl"]


def test_figures_can_be_written_where_nothing_is_trained(
    options: RunOptions, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(options)
    path = options.results / "benchmark_cub.json"
    before = read_result(path)
    store = store_of(study_of(options), options)
    for each in store.runs():
        elsewhere = {**each.found["origin"], "device": "NVIDIA H200", "commit": "0123456789", "date": "2026-01-02"}
        store.ledger.put(each.asked, {**each.found, "origin": elsewhere})
    path.write_text(json.dumps({**before, "command": "what trained them", "note": "By hand."}))
    monkeypatch.setattr(benchmark, "train_missing", lambda *_: pytest.fail("nothing is to be trained"))
    monkeypatch.setattr(benchmark, "find_spec", lambda name: None)
    (options.images / "benchmark_cub.png").unlink()
    run(replace(options, settings=replace(options.settings, train=False)))
    assert not (options.images / "benchmark_cub.png").exists()
    assert "not drawn, for want of matplotlib" in capsys.readouterr().out
    after = read_result(path)
    assert [arm["map"] for arm in after["value"]["arms"]] == [arm["map"] for arm in before["value"]["arms"]]
    assert (after["device"], after["commit"], after["date"]) == ("NVIDIA H200", "0123456789", "2026-01-02")
    assert (after["command"], after["note"]) == ("what trained them", "By hand.")
    # New trainings bring their own certificate, and the older keep theirs.
    monkeypatch.undo()
    more = replace(options, settings=replace(options.settings, folds="0,1"))
    run(more)
    mixed = read_result(path)
    assert mixed["commit"] == before["commit"]
    assert mixed["date"] == before["date"]
    assert [(each["device"], each["runs"]) for each in mixed["origins"]] == [("NVIDIA H200", 2), (before["device"], 2)]
    assert (mixed["command"], mixed["note"]) == (benchmark.EXPERIMENT.command(more), "By hand.")


@pytest.mark.parametrize(
    ("module", "again", "chosen"),
    [(benchmark, run, BenchmarkSettings()), (benchmark_study, components.run, StudySettings())],
)
def test_figures_are_written_where_a_training_broke_and_nobody_waits_for_them_after_ctrl_c(
    module, again, chosen, options: RunOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(options)
    options = replace(options, settings=chosen, results=options.results / "again")
    for ending, written in ((SystemExit(130), False), (RuntimeError("a training broke"), True)):

        def ended(*_: object, ending: BaseException = ending) -> None:
            raise ending

        monkeypatch.setattr(module, "train_missing", ended)
        with pytest.raises(type(ending)):
            again(options)
        assert bool([*options.results.glob("*.json")]) == written


def test_a_training_cut_short_goes_on_and_ends_like_one_that_was_not(
    tmp_path: Path, options: RunOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(options)
    whole = store_of(study_of(options), options)
    other = replace(options, work=tmp_path / "again", results=tmp_path / "elsewhere")
    study = study_of(other)
    store = store_of(study, other)
    # Time is over at the first evaluation of each: the clock jumps an hour at every look.
    ticks = itertools.count(0, 3600)
    with monkeypatch.context() as hurried:
        hurried.setattr("gspool.experiments.resident.train.time.perf_counter", lambda: float(next(ticks)))
        train_missing(replace(study, seconds=3000.0), stand_in(), store, other)
    assert [each.found["ending"] for each in store.runs()] == ["time", "time"]
    assert all(each.found["steps"] == 2 for each in store.runs())
    assert len(list((store.folder / "unfinished").iterdir())) == 2
    train_missing(study, stand_in(), store, other)
    assert not list((store.folder / "unfinished").iterdir())
    for each, again in zip(whole.runs(), store.runs(), strict=True):
        assert (each.asked, each.found["metrics"]) == (again.asked, again.found["metrics"])
        assert torch.equal(whole.result(each).embeddings, store.result(again).embeddings)
        assert [row["loss"] for row in each.found["curve"]] == [row["loss"] for row in again.found["curve"]]


def test_a_run_without_time_for_any_training_says_so(options: RunOptions) -> None:
    with pytest.raises(ValueError, match="no time for any of 2 trainings; give more --seconds"):
        benchmark.run(replace(options, settings=replace(options.settings, seconds=1e-9)))
    assert not [*options.results.glob("*.json")]
