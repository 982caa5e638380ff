"""A grid does what is missing, keeps each run when it ends, and stops in time."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gspool.executor import Executor, grid
from gspool.executor.grid import FailedRunsError, run_grid
from gspool.executor.run_store import RunStore

JOBS = [{"seed": seed} for seed in range(4)]


def square(calls: Path, asked: Mapping[str, Any], seconds: float) -> dict[str, Any]:
    with calls.open("a") as file:
        file.write(f"{asked['seed']}\n")
    if asked["seed"] == 2:
        raise ValueError("two")
    return {"square": asked["seed"] ** 2}


def make_square(calls: Path) -> Any:
    return partial(square, calls)


def test_only_missing_runs_are_done_and_a_failure_harms_no_other_run(tmp_path: Path) -> None:
    store, calls = RunStore(tmp_path / "runs.jsonl"), tmp_path / "calls"
    store.put({"seed": 0}, {"square": 0})
    with pytest.raises(FailedRunsError, match=r"(?s)1 of 3 trainings failed.*seed 2.*two") as failed:
        run_grid(store, JOBS, partial(make_square, calls))
    assert len(failed.value.failures) == 1
    done = RunStore(store.path)
    assert [done.get({"seed": seed}) for seed in (1, 2, 3)] == [{"square": 1}, None, {"square": 9}]
    assert calls.read_text().split() == ["1", "2", "3"]
    assert run_grid(done, [{"seed": 0}, {"seed": 1}], partial(make_square, calls)) == 0


def test_time_that_runs_out_leaves_the_rest_for_the_same_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = RunStore(tmp_path / "runs.jsonl")
    told: list[float] = []
    clock = [1000.0]
    monkeypatch.setattr(grid.time, "time", lambda: clock[0])

    def worker(asked: Mapping[str, Any], seconds: float) -> dict[str, Any] | None:
        told.append(seconds)
        if asked["seed"] == 1:
            clock[0] += 0.4
            return None
        return {"x": asked["seed"]}

    assert run_grid(store, JOBS, lambda: worker, seconds=0.3) == 3
    assert "3 of 4 trainings are left" in capsys.readouterr().out
    assert told == pytest.approx([0.3, 0.3])
    assert [run.asked["seed"] for run in store.runs()] == [0]
    told.clear()
    assert run_grid(store, JOBS, lambda: lambda asked, seconds: told.append(seconds) or {"x": 1}) == 0
    assert told == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_in_this_process_keeps_what_is_finished(
    training: bool, number: int, status: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Imported here, because it brings torch, which the processes of the other tests would load too.
    from gspool.training.processes import TerminatedError, TrainingInterruptedError

    store = RunStore(tmp_path / "runs.jsonl")
    stop: BaseException = KeyboardInterrupt() if number == signal.SIGINT else TerminatedError()
    if training:
        stop = TrainingInterruptedError(Path("x"), 3, number)

    def worker(asked: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        if asked["seed"] == 2:
            raise stop
        return {"x": 1}

    with pytest.raises(SystemExit) as left:
        run_grid(store, JOBS, lambda: worker, name="heads")
    assert left.value.code == status
    assert capsys.readouterr().err == "\nstopped; 2 of 4 heads are kept, the same command continues\n"
    assert len(RunStore(store.path).runs()) == 2


def larger(store: RunStore) -> list[dict[str, int]]:
    """Return jobs that depend on the results of seeds 1 and 3."""
    return [{"seed": 10 * int((store.get({"seed": seed}) or {})["square"])} for seed in (1, 3)]


def test_further_jobs_may_depend_on_the_results_of_the_first(tmp_path: Path) -> None:
    store, calls = RunStore(tmp_path / "runs.jsonl"), tmp_path / "calls"
    for _ in range(2):  # the second call finds everything done
        found = run_grid(store, [{"seed": 1}, {"seed": 3}], partial(make_square, calls), then=partial(larger, store))
        assert found == 0
    assert sorted(calls.read_text().split()) == ["1", "10", "3", "90"]


def test_in_several_processes_a_failure_harms_no_other_job(tmp_path: Path) -> None:
    store, calls = RunStore(tmp_path / "runs.jsonl"), tmp_path / "calls"
    store.put({"seed": 0}, {"square": 0})
    with pytest.raises(RuntimeError, match=r"(?s)1 of 5.*two"):
        run_grid(store, JOBS, partial(make_square, calls), Executor(2), then=partial(larger, store))
    assert sorted(calls.read_text().split()) == ["1", "10", "2", "3", "90"]
    assert RunStore(store.path).get({"seed": 90}) == {"square": 8100}
    assert store.get({"seed": 2}) is None
