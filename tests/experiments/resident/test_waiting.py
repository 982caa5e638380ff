"""No training begins that would end too late, going by those that have ended."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch

from experiments.resident.tiny_sets import tiny
from gspool.experiments.benchmark.stand_in import striped
from gspool.experiments.resident import Job, Outcome, Pace, train_resident
from gspool.experiments.resident.pace import kind_of
from gspool.experiments.resident.waiting import Waiting


def job(loss: str = "pnca", pooling: str = "gsp") -> Job:
    settings = tiny()
    settings.loss.name, settings.model.pooling = loss, pooling
    return Job({}, settings, [], [])


def outcome(seconds: float, ending: str = "patience") -> Outcome:
    return Outcome({}, None, 1, 1, ending, None, seconds, 1.0, [], {}, torch.ones(1, 1))


def test_the_median_of_a_kind_is_expected_and_this_call_counts_more_than_others() -> None:
    kinds = [("c2 gsp", 100.0), ("c2 gsp", 900.0), ("c2 gsp", 300.0), ("c2 gap", 50.0), ("c2 gemax", 5_000.0)]
    pace = Pace(kinds)
    assert (pace.expected("c2 gsp"), pace.expected("c2 gap"), pace.expected("ms gap")) == (300.0, 50.0, 300.0)
    pace.note("c2 gap", 20.0)
    pace.note("c2 gap", 30.0)
    assert (pace.expected("c2 gap"), pace.expected("ms gap"), pace.expected("c2 gsp")) == (25.0, 25.0, 300.0)
    assert kind_of(job("c2", "gap")) == "c2 gap"


def test_jobs_are_handed_out_in_order_until_the_first_that_does_not_fit() -> None:
    jobs = [job("c2", "gap"), job("c2", "gsp"), job("c2", "gap")]
    waiting = Waiting(jobs, time.time() + 100, Pace([("c2 gap", 10.0), ("c2 gsp", 1_000.0)]))
    assert waiting.next() == 0
    # The third would fit, but would stand there without its pair.
    assert waiting.next() is None
    assert waiting.next() is None
    assert waiting.left() == jobs[1:]


def test_one_that_time_cut_short_says_nothing_about_how_long_others_take() -> None:
    waiting = Waiting([job()], time.time() + 100, Pace())
    waiting.note(job(), outcome(1_000.0, "time"))
    assert waiting.pace.expected("pnca gsp") == 0.0
    waiting.note(job(), outcome(1_000.0))
    assert waiting.next() is None


def test_without_a_limit_everything_is_handed_out() -> None:
    waiting = Waiting([job(), job()], None, Pace([("pnca gsp", 1e9)]))
    assert [waiting.next() for _ in range(3)] == [0, 1, None]
    assert waiting.left() == []


@pytest.mark.parametrize("warm_start", [0, 12])
def test_a_run_in_three_parts_is_the_run_in_one(tmp_path: Path, warm_start: int) -> None:
    settings = tiny(max_steps=6, evaluate_every=2, patience=2)
    settings.model.pooling_options["warm_start"] = warm_start
    settings.loss.zsr = 0.1
    sets = (striped(8, 6), striped(5, 4, seed=1), striped(6, 4, seed=2), "cpu")
    whole = train_resident(settings, *sets)
    file = tmp_path / "unfinished" / "run.pt"
    first = train_resident(settings, *sets, seconds=0.0, unfinished=file)
    assert (first.ending, first.steps, file.is_file()) == ("time", 2, True)
    second = train_resident(settings, *sets, seconds=0.0, unfinished=file)
    assert (second.ending, second.steps) == ("time", 4)
    assert second.seconds > first.seconds
    last = train_resident(settings, *sets, unfinished=file)
    assert not file.exists()
    assert (last.ending, last.steps, last.best_step) == (whole.ending, whole.steps, whole.best_step)
    assert torch.equal(last.embeddings, whole.embeddings)
    assert [row["loss"] for row in last.curve] == [row["loss"] for row in whole.curve]
