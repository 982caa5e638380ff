"""Protocols run, resume after any crash, and refuse what does not belong together."""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import signal
from dataclasses import replace

import pytest
import torch

from gspool.evaluation import PROTOCOLS, Protocol, RunResult, retrieval_metrics, run_protocol
from gspool.evaluation.finished_runs import FinishedRuns
from gspool.files import write_atomic

LABELS = torch.arange(24) % 6


def train(fold, repeat):
    draws = torch.Generator().manual_seed(100 * fold + repeat)
    embeddings = torch.randn(6, 3, generator=draws)[LABELS] + 1.5 * torch.randn(24, 3, generator=draws)
    return RunResult(embeddings, retrieval_metrics(embeddings, LABELS))


class Counted:
    """Count runs, and fail where told to."""

    def __init__(self, fails_at=None):
        self.calls, self.fails_at = [], fails_at

    def __call__(self, fold, repeat):
        if (fold, repeat) == self.fails_at:
            raise RuntimeError("out of memory")
        self.calls.append((fold, repeat))
        return train(fold, repeat)


def test_fair_runs_everything_and_reports(tmp_path):
    run = Counted()
    report = run_protocol("fair", run, tmp_path, LABELS)
    assert sorted(run.calls) == [(fold, repeat) for fold in range(4) for repeat in range(3)]
    mean = sum(train(fold, repeat).metrics["map@r"] for fold, repeat in run.calls) / 12
    assert report.separate["map@r"].mean == pytest.approx(mean)
    # Four noisy views of the same classes together beat each of them.
    assert report.concatenated["map@r"].mean > report.separate["map@r"].mean
    assert json.loads((tmp_path / "report.json").read_text()) == report.as_dict()
    assert "concatenated" in str(report)
    assert report.best is None


def test_conventional_reports_the_best_and_tuning_the_mean(tmp_path):
    conventional = run_protocol("conventional", train, tmp_path / "conventional", LABELS)
    scores = [train(0, repeat).metrics for repeat in range(3)]
    assert conventional.best == dict(max(scores, key=lambda one: one["p@1"]))
    assert conventional.concatenated is None
    assert "best" in str(conventional)
    tuning = run_protocol("tuning", train, tmp_path / "tuning", LABELS)
    assert tuning.best is None
    assert tuning.separate["p@1"].mean == pytest.approx(sum(one["p@1"] for one in scores) / 3)


def test_finished_runs_are_not_made_again(tmp_path):
    whole = run_protocol("fair", train, tmp_path / "whole", LABELS)
    broken = Counted(fails_at=(2, 1))
    with pytest.raises(RuntimeError, match="out of memory"):
        run_protocol("fair", broken, tmp_path / "broken", LABELS)
    resumed = Counted()
    report = run_protocol("fair", resumed, tmp_path / "broken", LABELS)
    assert len(broken.calls) == 6
    assert sorted(broken.calls + resumed.calls) == sorted(PROTOCOLS["fair"].runs())
    assert report == whole
    again = Counted()
    assert run_protocol("fair", again, tmp_path / "broken", LABELS) == whole
    assert again.calls == []


def killed_at(moment, folder):
    """Run a protocol in this process and kill it."""
    rename = os.replace

    def run(fold, repeat):
        if moment == "while training" and (fold, repeat) == (1, 1):
            os.kill(os.getpid(), signal.SIGKILL)
        return train(fold, repeat)

    def killing(aside, path):
        if moment == "before the rename" and path.name == "fold1-repeat1.safetensors":
            os.kill(os.getpid(), signal.SIGKILL)
        rename(aside, path)
        if moment == "between the two files" and path.name == "fold1-repeat1.safetensors":
            os.kill(os.getpid(), signal.SIGKILL)

    os.replace = killing
    run_protocol("fair", run, folder, LABELS)


@pytest.mark.parametrize("moment", ["while training", "before the rename", "between the two files"])
def test_a_killed_protocol_resumes_to_the_same_numbers(tmp_path, moment):
    folder = tmp_path / "runs"
    process = multiprocessing.get_context("fork").Process(target=killed_at, args=(moment, folder))
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    resumed = Counted()
    report = run_protocol("fair", resumed, folder, LABELS)
    # The first four runs and (0, 1) had finished.
    assert resumed.calls == PROTOCOLS["fair"].runs()[5:]
    assert report == run_protocol("fair", train, tmp_path / "whole", LABELS)
    assert not list(folder.glob(".*.part"))


def test_repeats_can_be_added_later(tmp_path):
    first, second = Counted(), Counted()
    assert len(run_protocol("tuning", first, tmp_path, LABELS, repeats=1).runs) == 1
    assert len(run_protocol("tuning", second, tmp_path, LABELS, repeats=3).runs) == 3
    assert (first.calls, second.calls) == ([(0, 0)], [(0, 1), (0, 2)])


def test_a_gallery_survives_the_folder(tmp_path):
    gallery_labels = torch.arange(12) % 6

    def run(fold, repeat):
        query, gallery = train(fold, repeat), torch.eye(6, 3)[gallery_labels] + fold
        return RunResult(query.embeddings, query.metrics, gallery)

    report = run_protocol("fair", run, tmp_path, LABELS, gallery_labels, repeats=1)
    assert run_protocol("fair", Counted(), tmp_path, LABELS, gallery_labels, repeats=1) == report


def test_progress_is_shown_when_asked_for(tmp_path, capsys):
    run_protocol("fair", train, tmp_path / "quiet", LABELS, repeats=1)
    assert capsys.readouterr().out == ""
    run_protocol("fair", train, tmp_path / "shown", LABELS, repeats=1, progress=True)
    shown = capsys.readouterr().out
    assert "fair: runs" in shown
    assert "4/4" in shown


def test_runs_of_something_else_are_refused(tmp_path):
    run_protocol("tuning", train, tmp_path, LABELS)
    with pytest.raises(ValueError, match=r"another protocol or test set: folds, protocol, splits differ"):
        run_protocol("fair", train, tmp_path, LABELS)
    with pytest.raises(ValueError, match="test_set differ"):
        run_protocol("tuning", train, tmp_path, LABELS.flip(0))


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (None, "must return a RunResult.*NoneType"),
        (RunResult(torch.ones(23, 3), {"p@1": 0.5}), "row for each of 24 labels, got 23"),
        (RunResult(torch.full((24, 3), math.nan), {"p@1": 0.5}), "must be finite"),
        (RunResult(torch.ones(24, 3), {"p@1": math.nan}), "finite metrics"),
        (RunResult(torch.ones(24, 3), {}), "finite metrics"),
        (RunResult(torch.ones(24, 3), {"p@1": 0.5}, torch.ones(2, 3)), "exactly if the test set has gallery_labels"),
        (RunResult(torch.ones(24, 3), {"map@r": 0.5}), "chooses its best run by 'p@1'"),
    ],
)
def test_unusable_results_are_refused_and_not_kept(tmp_path, result, message):
    with pytest.raises(ValueError, match=message):
        run_protocol("conventional", lambda fold, repeat: result, tmp_path, LABELS)
    assert not list(tmp_path.glob("fold*")) or "chooses its best" in message


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda folder: run_protocol("unfair", train, folder, LABELS),
            "there are fair, conventional, tuning",
        ),
        (lambda _: Protocol("mine", splits=2, folds=3, repeats=1, report="mean"), "no more folds than splits"),
        (lambda folder: run_protocol("fair", train, folder, LABELS, repeats=0), "repeats=0"),
        (lambda _: replace(PROTOCOLS["fair"], report="worst"), "'worst'"),
    ],
)
def test_unknown_protocols_are_refused(tmp_path, make, message):
    with pytest.raises(ValueError, match=message):
        make(tmp_path)


def test_damaged_files_are_named(tmp_path):
    run_protocol("tuning", train, tmp_path, LABELS)
    (tmp_path / "fold0-repeat1.safetensors").write_bytes(b"torn")
    with pytest.raises(ValueError, match=r"fold0-repeat1.safetensors is damaged"):
        run_protocol("tuning", train, tmp_path, LABELS)
    (tmp_path / "fold0-repeat1.safetensors").unlink()
    run = Counted()
    run_protocol("tuning", run, tmp_path, LABELS)
    assert run.calls == [(0, 1)]
    (tmp_path / "protocol.json").write_text("{")
    with pytest.raises(ValueError, match=r"protocol.json is damaged"):
        run_protocol("tuning", train, tmp_path, LABELS)


def test_a_full_disk_leaves_the_old_file_whole(tmp_path, monkeypatch):
    path = tmp_path / "report.json"
    write_atomic(path, b"old")

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_atomic(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_embeddings_come_back_as_they_were(tmp_path, dtype):
    vectors = torch.randn(7, 3, 2, generator=torch.Generator().manual_seed(0)).to(dtype)[..., 0]
    runs = FinishedRuns(tmp_path, {"protocol": "fair", "sizes": (1, 2)})
    runs.save(1, 2, RunResult(vectors, {"p@1": 1 / 3}))
    loaded = FinishedRuns(tmp_path, {"protocol": "fair", "sizes": (1, 2)}).load(1, 2)
    assert torch.equal(loaded.embeddings, vectors)
    assert loaded.metrics == {"p@1": 1 / 3}
    assert loaded.gallery is None
