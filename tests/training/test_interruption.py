"""Ctrl-C, SIGTERM and kill -9 at any moment, on one process and two: the right status, and the same numbers after."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gspool.training.checkpoint import LAST, read_checkpoint
from gspool.training.heads import TokenHead
from gspool.training.metric_learning import MetricLearning
from gspool.training.metrics_log import read_metrics
from gspool.training.parsing import as_yaml
from training.interrupted_runs import config_of, numbers_of, reference, said, start, wait

pytestmark = [
    pytest.mark.usefixtures("ready_to_fork"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning"),
]


@pytest.fixture(scope="session")
def whole_runs(tmp_path_factory) -> Path:
    """The folder of uninterrupted runs, which several tests compare with."""
    return tmp_path_factory.mktemp("whole")


def stop_at_random(
    folder: Path, ranks: int, number: int, seconds: float, generator: random.Random, workers: int = 0
) -> str:
    """Start or resume a run, send a signal to its process group, and check how it ends."""
    processes = start(config_of(folder, ranks, workers), ranks)
    time.sleep(generator.uniform(0.0, seconds))
    began = time.monotonic()
    try:
        os.killpg(processes[0], number)
    except ProcessLookupError:
        return "finished"
    statuses = wait(processes, leave_together=True)
    if statuses == [0] * ranks:
        assert (folder / "result.json").exists(), said(folder)
        return "finished"
    if -number in statuses:
        return "early"  # before the command has begun; torchrun ends the other process then, and so does `wait`
    assert statuses == [128 + number] * ranks, [said(folder, rank) for rank in range(ranks)]
    assert "Traceback" not in said(folder)
    assert time.monotonic() - began < 100
    if said(folder).strip() == "interrupted":
        return "before training"
    assert f"go on with: gspool train --resume {folder}" in said(folder)
    return "stopped"


@pytest.mark.parametrize(
    ("ranks", "number", "workers"),
    [(1, signal.SIGTERM, 0), (1, signal.SIGTERM, 2), (1, signal.SIGINT, 0), (2, signal.SIGTERM, 0)],
)
def test_a_signal_to_the_process_group_stops_in_order_and_resumes(tmp_path, whole_runs, ranks, number, workers):
    whole, seconds = reference(whole_runs, ranks)
    generator = random.Random(ranks)
    ends = [stop_at_random(tmp_path / "run", ranks, number, seconds, generator, workers) for _ in range(2)]
    assert wait(start(config_of(tmp_path / "run", ranks), ranks)) == [0] * ranks, said(tmp_path / "run")
    assert numbers_of(tmp_path / "run") == whole, ends


@pytest.mark.parametrize(
    ("ranks", "frozen", "phase", "step"),
    [(1, False, ".", 11), (1, True, "head", 5), (1, True, ".", 11), (2, True, "head", 5)],
)
def test_a_killed_run_resumes_to_the_same_numbers(tmp_path, whole_runs, monkeypatch, ranks, frozen, phase, step):
    whole, _ = reference(whole_runs, ranks, frozen)
    config, loss = config_of(tmp_path / "run", ranks, frozen=frozen), MetricLearning.loss

    def killed(task, batch, at):
        if at == step and isinstance(task.model, TokenHead) == (phase == "head"):
            os.killpg(0, signal.SIGKILL)
        return loss(task, batch, at)

    monkeypatch.setattr(MetricLearning, "loss", killed)
    assert wait(start(config, ranks)) == [-signal.SIGKILL] * ranks
    monkeypatch.setattr(MetricLearning, "loss", loss)
    assert not (tmp_path / "run" / phase / "result.json").exists()
    assert read_checkpoint(tmp_path / "run" / phase / LAST)["step"] >= step - 3
    assert wait(start(config, ranks)) == [0] * ranks, said(tmp_path / "run")
    assert numbers_of(tmp_path / "run") == whole


def test_sigterm_to_the_launcher_of_two_processes_stops_both(tmp_path):
    """The way of a user: `gspool train --trainer.devices 2`, where the first process launches the second."""
    config = config_of(tmp_path / "run", 2)
    config.trainer.max_steps = 100_000
    (tmp_path / "config.yaml").write_text(as_yaml(config))
    command = [sys.executable, "-m", "gspool.cli", "train", "--config", str(tmp_path / "config.yaml")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        end = time.monotonic() + 200
        while len(read_metrics(tmp_path / "run")) < 4:
            assert process.poll() is None
            assert time.monotonic() < end
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        error = process.communicate(timeout=100)[1]
    finally:
        process.kill()
    assert process.returncode == 143, error
    assert f"go on with: gspool train --resume {tmp_path / 'run'}" in error
    assert "Traceback" not in error
    end = time.monotonic() + 60
    while _processes_of(tmp_path):
        assert time.monotonic() < end, "a rank stayed behind"
        time.sleep(0.1)


def _processes_of(folder: Path) -> list[str]:
    """Return the processes whose command names a folder."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and str(folder) in (entry / "cmdline").read_text():
                found.append(entry.name)
        except OSError:
            continue  # it has ended meanwhile
    return found


@pytest.mark.slow
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("ranks", [1, 2])
def test_twenty_signals_at_random_moments(tmp_path, whole_runs, ranks):
    whole, seconds = reference(whole_runs, ranks)
    generator, ends, number = random.Random(ranks), [], 0
    while len([end for end in ends if end != "finished"]) < 20:
        folder = tmp_path / f"run{number}"
        signum = generator.choice([signal.SIGTERM, signal.SIGTERM, signal.SIGINT])
        ends.append(stop_at_random(folder, ranks, signum, seconds, generator, generator.choice([0, 1])))
        if ends[-1] == "finished":
            seconds *= 0.9  # the machine has become faster than it was
        if ends[-1] == "finished" or len(ends) % 3 == 0:
            assert wait(start(config_of(folder, ranks), ranks)) == [0] * ranks
            assert numbers_of(folder) == whole
            number += 1
    record(f"signals_{ranks}_ranks", {end: ends.count(end) for end in sorted(set(ends))})


@pytest.mark.slow
@pytest.mark.timeout(7_200)
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_hundred_kills_change_no_number(tmp_path, whole_runs, ranks):
    whole, seconds = reference(whole_runs, ranks)
    generator, kills, runs, late = random.Random(10 + ranks), 0, 0, 0
    while kills < 100:
        folder = tmp_path / f"run{runs}"
        for _ in range(generator.randint(1, 8)):
            processes = start(config_of(folder, ranks), ranks)
            time.sleep(generator.uniform(0.0, seconds))
            for process in processes:
                os.kill(process, signal.SIGKILL)  # one after the other, as a machine that runs out of memory
            if -signal.SIGKILL not in wait(processes):
                late, seconds = late + 1, 0.9 * seconds  # the machine has become faster than it was
                break
            kills += 1
        assert wait(start(config_of(folder, ranks), ranks)) == [0] * ranks, said(folder)
        assert numbers_of(folder) == whole
        runs += 1
    record(f"kills_{ranks}_ranks", {"kills": kills, "runs": runs, "identical": runs, "ended_before_the_kill": late})


def record(name: str, figures: dict[str, int]) -> None:
    """Add figures to the file that $GSPOOL_RELIABILITY names, if it names one."""
    if "GSPOOL_RELIABILITY" in os.environ:
        path = Path(os.environ["GSPOOL_RELIABILITY"])
        known = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps({**known, name: figures}, indent=2) + "\n")
