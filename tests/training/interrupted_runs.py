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
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from gspool.training import TrainConfig
from gspool.training.checkpoint import BEST, LAST, read_checkpoint
from gspool.training.metrics_log import read_metrics
from gspool.training.parsing import as_yaml
from gspool.training.run import run
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


def fork(work: Callable[[], int | None]) -> int:
    """Do something in a forked process, which leaves with the status that it returns; return the process id."""
    sys.stdout.flush()
    sys.stderr.flush()
    process = os.fork()
    if process:
        return process
    status = 1
    try:
        status = work() or 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def start(config: TrainConfig, ranks: int) -> list[int]:
    """Fork the processes of a run; it resumes where the folder holds a checkpoint. Return their process ids."""
    port, folder = free_port(), Path(config.output.folder)
    folder.mkdir(parents=True, exist_ok=True)
    arguments = ["--resume", str(folder)]
    if not (folder / "config.yaml").exists():
        # Here, not in the processes: one would read what another is just writing.
        arguments = ["--config", str(folder.parent / "config.yaml")]
        Path(arguments[1]).write_text(as_yaml(config))
    processes: list[int] = []
    for rank in range(ranks):
        group = processes[0] if processes else 0
        process = fork(functools.partial(_train, arguments, folder, rank, ranks, port, group))
        os.setpgid(process, group or process)
        processes.append(process)
    return processes


def _train(arguments: list[str], folder: Path, rank: int, ranks: int, port: int, group: int) -> int:
    """Run the command in a forked process."""
    os.setpgid(0, group)
    if ranks > 1:
        place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        os.environ.update({name: str(value) for name, value in place.items()}, TORCHELASTIC_RUN_ID="test")
    said = os.open(folder.parent / f"{folder.name}.{rank}.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(said, 1)
    os.dup2(said, 2)
    sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
    return run("train", arguments)


def wait(processes: list[int], seconds: float = 200.0, leave_together: bool = False) -> list[int]:
    """Wait for all processes; return their statuses, negative for a signal.

    With ``leave_together``, one that a signal has ended takes the others with it, as torchrun has it.

    Raises:
        TimeoutError: if one of them does not end; all of them are killed then.
    """
    end, statuses, late = time.monotonic() + seconds, {}, []
    while len(statuses) < len(processes):
        left = [process for process in processes if process not in statuses]
        for process in left:
            ended, status = os.waitpid(process, os.WNOHANG)
            if ended:
                statuses[process] = os.waitstatus_to_exitcode(status)
        if not late and time.monotonic() > end:
            late = left
        if late or (leave_together and any(status < 0 for status in statuses.values())):
            for process in left:
                if process not in statuses:
                    os.kill(process, signal.SIGKILL)
        time.sleep(0.002)
    if late:
        raise TimeoutError(f"{len(late)} of {len(processes)} processes did not end")
    return [statuses[process] for process in processes]


def said(folder: Path, rank: int = 0) -> str:
    """Return what a process printed."""
    return (folder.parent / f"{folder.name}.{rank}.txt").read_text()


def numbers_of(folder: Path) -> dict[str, Any]:
    """Return all numbers of a finished run but its times: result.json, metrics.csv, the last and the best state."""

    def without_times(row: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in row.items() if name not in TIMES}

    def plain(state: dict[str, torch.Tensor]) -> dict[str, Any]:
        return {name: value.tolist() for name, value in state.items()}

    last = read_checkpoint(folder / LAST)
    best = read_checkpoint(folder / BEST) if (folder / BEST).exists() else {}
    return {
        "result": without_times(json.loads((folder / "result.json").read_text())),
        "rows": [without_times(row) for row in read_metrics(folder)],
        "module": plain(last["module"]),
        "average": plain(last.get("ema", {}).get("averages", {})),
        "best": {part: plain(best.get(part, {})) for part in ("model", "loss")},
    }


@functools.cache
def reference(folder: Path, ranks: int, frozen: bool = False) -> tuple[dict[str, object], float]:
    """Make an uninterrupted run, once; return its numbers and its seconds."""
    folder = folder / f"{ranks}-{frozen}" / "whole"
    began = time.monotonic()
    statuses = wait(start(config_of(folder, ranks, frozen=frozen), ranks))
    assert statuses == [0] * ranks, said(folder)
    return numbers_of(folder), time.monotonic() - began
