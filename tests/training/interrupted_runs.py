"""Runs that are killed and resumed: in processes forked from one that has imported everything, so that each is quick.

`start` begins or resumes a run on one process or two. Two are connected as under torchrun: by their environment.
"""

from __future__ import annotations

import functools
import json
import os
import random
import signal
import socket
import sys
import time
import traceback
from contextlib import suppress
from pathlib import Path

from gspool.training import TrainConfig
from gspool.training.checkpoint import LAST, read_checkpoint
from gspool.training.metrics_log import read_metrics
from gspool.training.parsing import as_yaml
from training.tiny_run import tiny

TIMES = ("seconds", "images_per_second", "steps_per_second")


def config_of(folder: Path, ranks: int, workers: int = 0, frozen: bool = False) -> TrainConfig:
    """Return a run of 20 steps with state of every kind: proxies, a warm start, augmentation, a falling rate.

    With ``frozen`` there are 10 steps of the head alone before them, on stored tokens.
    """
    config = tiny(max_steps=20, evaluate_every=5, checkpoint_every=3, devices=ranks)
    config.loss.zsr = 0.2
    config.model.freeze = "batchnorm"
    config.model.pooling_options["warm_start"] = 100
    config.schedule.name, config.schedule.patience = "plateau", 0
    config.data.transform, config.data.workers = "shift", workers
    config.output.folder = str(folder)
    if frozen:
        config.head.steps, config.features.folder = 10, str(folder.parent / "tokens")
        config.model.backbone_options["pixels"] = {"size": 16, "resize": 16}
    return config


def free_port() -> int:
    """Return a port that is free now, below those that the system hands out: no other process is given it meanwhile."""
    while True:
        port = random.SystemRandom().randrange(15_000, 30_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def start(config: TrainConfig, ranks: int) -> list[int]:
    """Fork the processes of a run; it resumes where the folder holds a checkpoint. Return their process ids."""
    port = free_port()
    sys.stdout.flush()
    sys.stderr.flush()
    folder = Path(config.output.folder)
    folder.mkdir(parents=True, exist_ok=True)
    group, processes = 0, []
    for rank in range(ranks):
        process = os.fork()
        if process == 0:
            _train(config, folder, rank, ranks, port, group)
        group = group or process
        os.setpgid(process, group)
        processes.append(process)
    return processes


def _train(config: TrainConfig, folder: Path, rank: int, ranks: int, port: int, group: int) -> None:
    """Run the command in a forked process, and leave with its status."""
    status = 1
    try:
        os.setpgid(0, group)
        if ranks > 1:
            os.environ.update(
                RANK=str(rank),
                LOCAL_RANK=str(rank),
                WORLD_SIZE=str(ranks),
                MASTER_ADDR="127.0.0.1",
                MASTER_PORT=str(port),
                TORCHELASTIC_RUN_ID="test",
            )
        said = os.open(folder.parent / f"{folder.name}.{rank}.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(said, 1)
        os.dup2(said, 2)
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
        from gspool.training.run import run

        arguments = ["--resume", str(folder)]
        if not (folder / "config.yaml").exists():
            (folder.parent / "config.yaml").write_text(as_yaml(config))
            arguments = ["--config", str(folder.parent / "config.yaml")]
        status = run("train", arguments)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def wait(processes: list[int], seconds: float = 200.0, leave_together: bool = False) -> list[int]:
    """Wait for all processes; return their statuses, negative for a signal.

    With ``leave_together``, one that a signal has ended takes the others with it, as torchrun has it.

    Raises:
        TimeoutError: if one of them does not end; all of them are killed then.
    """
    end, statuses = time.monotonic() + seconds, {}
    while len(statuses) < len(processes):
        for process in processes:
            if process not in statuses:
                ended, status = os.waitpid(process, os.WNOHANG)
                if ended:
                    statuses[process] = os.waitstatus_to_exitcode(status)
        if leave_together and any(status < 0 for status in statuses.values()):
            for process in processes:
                if process not in statuses:
                    os.kill(process, signal.SIGKILL)
        if time.monotonic() > end:
            for process in processes:
                if process not in statuses:
                    os.kill(process, signal.SIGKILL)
                    os.waitpid(process, 0)
            raise TimeoutError(f"{len(processes) - len(statuses)} of {len(processes)} processes did not end")
        time.sleep(0.002)
    return [statuses[process] for process in processes]


def said(folder: Path, rank: int = 0) -> str:
    """Return what a process printed."""
    return (folder.parent / f"{folder.name}.{rank}.txt").read_text()


def numbers_of(folder: Path) -> dict[str, object]:
    """Return all numbers of a finished run but its times: result.json, metrics.csv, the last state."""
    result = json.loads((folder / "result.json").read_text())
    rows = read_metrics(folder)
    return {
        "result": {name: value for name, value in result.items() if name not in TIMES},
        "rows": [{name: value for name, value in row.items() if name not in TIMES} for row in rows],
        "state": {name: value.tolist() for name, value in read_checkpoint(folder / LAST)["module"].items()},
    }


@functools.cache
def reference(folder: Path, ranks: int, frozen: bool = False) -> tuple[dict[str, object], float]:
    """Make an uninterrupted run, once; return its numbers and its seconds."""
    folder = folder / f"{ranks}-{frozen}" / "whole"
    began = time.monotonic()
    statuses = wait(start(config_of(folder, ranks, frozen=frozen), ranks))
    assert statuses == [0] * ranks, said(folder)
    return numbers_of(folder), time.monotonic() - began
