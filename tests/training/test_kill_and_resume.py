"""kill -9 in the middle of `gspool train`, then `--resume`: the numbers of a run that nobody killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from gspool.training import fit, train
from gspool.training.checkpoint import read_checkpoint
from gspool.training.metrics_log import read_metrics
from gspool.training.parsing import as_yaml
from training.interrupted_runs import numbers_of
from training.tiny_run import tiny


def wait_for_step(process: subprocess.Popen, folder, step: int) -> None:
    """Return as soon as the run has logged the step; it is then in the middle of a later one."""
    for _ in range(6_000):
        if any(row["step"] >= step for row in read_metrics(folder)):
            return
        if process.poll() is not None:
            pytest.fail(f"the run ended by itself with status {process.returncode}")
        time.sleep(0.02)
    pytest.fail("the run did not begin within two minutes")


def test_a_killed_run_resumes_to_the_same_numbers(tmp_path):
    config = tiny(max_steps=60, evaluate_every=20, checkpoint_every=7)
    config.loss.zsr = 0.2
    config.output.folder = str(tmp_path / "killed")
    (tmp_path / "config.yaml").write_text(as_yaml(config))
    command = [sys.executable, "-m", "gspool.cli", "train", "--config", str(tmp_path / "config.yaml")]
    process = subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"})
    wait_for_step(process, tmp_path / "killed", 31)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (tmp_path / "killed" / "result.json").exists()
    assert read_checkpoint(tmp_path / "killed" / "last.pt")["step"] >= 28
    resumed = train(config, resume=tmp_path / "killed").model
    whole = fit(config, tmp_path / "whole")
    assert (resumed.steps, resumed.metrics) == (whole.steps, whole.metrics)
    assert numbers_of(tmp_path / "killed") == numbers_of(tmp_path / "whole")
