"""The folder of a run: its lock, configuration, versions, log and result."""

from __future__ import annotations

import importlib.metadata
import json
import logging
import os
import platform
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from gspool.files import lock, write_atomic
from gspool.terminal.output import check_writable
from gspool.training.checkpoint import LAST, PREVIOUS
from gspool.training.config import TrainConfig
from gspool.training.parsing import as_yaml, plain, read_config
from gspool.version import __version__

CONFIG, VERSIONS, LOG, RESULT = "config.yaml", "versions.json", "log.txt", "result.json"
MODEL, REPORT = "model", "report.html"
HEAD = "head"  # the folder of the first phase, of the head alone
PACKAGES = ("torch", "torchvision", "lightning-fabric", "pytorch-metric-learning", "timm", "numpy")
log = logging.getLogger("gspool.training")


@contextmanager
def only_training(folder: Path, config: TrainConfig) -> Iterator[None]:
    """Lock the folder of a run against a second process, and own its configuration; a crash releases the lock.

    Raises:
        ValueError: if another process is training there, or the folder cannot be written or holds another run.
    """
    check_writable(folder, "--output.folder")
    folder.mkdir(parents=True, exist_ok=True)
    taken = (
        f"another process is training in {folder}; wait until it has ended, or stop it and go on with: "
        f"gspool train --resume {folder}"
    )
    # Optional: a file system without locks must not prevent training.
    with lock(folder / ".lock", taken, optional=True):
        _own_config(folder, config)
        yield


def process_rank() -> int:
    """Return the rank of this process before torch.distributed knows it, as set by torchrun, Slurm or Lightning."""
    for name in ("RANK", "SLURM_PROCID", "LOCAL_RANK"):
        if os.environ.get(name, "").isdigit():
            return int(os.environ[name])
    return 0


def new_run_folder(config: TrainConfig) -> Path:
    """Return the folder of a new run, which `only_training` creates."""
    if config.output.folder is not None:
        folder = Path(config.output.folder).expanduser()
    elif config.trainer.devices * config.trainer.num_nodes > 1:
        raise ValueError(
            "several processes need one folder that all of them know by name: give --output.folder, such as runs/first"
        )
    else:
        words = (config.data.name, config.model.pooling, config.loss.name, time.strftime("%Y%m%d-%H%M%S"))
        folder = Path("runs") / re.sub(r"[^A-Za-z0-9+.-]+", "_", "-".join(words))
    if process_rank() > 0:
        return folder
    if has_begun(folder):
        raise ValueError(
            f"{folder} already holds a run; continue it with: gspool train --resume {folder}, "
            "or choose another --output.folder"
        )
    check_writable(folder, "--output.folder")
    return folder


def has_begun(folder: Path) -> bool:
    """Check whether a folder holds anything that a new run would destroy."""
    return any((folder / name).exists() for name in (LAST, PREVIOUS, RESULT, f"{HEAD}/{LAST}"))


def _own_config(folder: Path, config: TrainConfig) -> None:
    """Write the configuration of a run into its folder, or check that the one there is the same.

    Progress, threads and the time limit may change when a run resumes; what determines its numbers may not.
    """
    path = folder / CONFIG
    # A run that failed before its first checkpoint, by a wrong setting for example, is replaced.
    if not path.exists() or not has_begun(folder):
        write_atomic(path, as_yaml(config).encode())
        return
    there, here = (_flat(_determining(each)) for each in (plain(read_config(path)), plain(config)))
    different = [name for name in here if there.get(name) != here[name]]
    if different:
        listed = ", ".join(f"{name} {there.get(name)!r} there and {here[name]!r} here" for name in different[:5])
        raise ValueError(f"{folder} holds a run with other settings ({listed}); choose another folder")


def _determining(content: dict[str, Any]) -> dict[str, Any]:
    free = ("progress", "threads", "max_time", "max_seconds")
    trainer = {name: value for name, value in content["trainer"].items() if name not in free}
    return {**{name: value for name, value in content.items() if name != "output"}, "trainer": trainer}


def _flat(content: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in content.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) and value else {prefix + name: value}
    return flat


def write_versions(folder: Path, device: str) -> None:
    """Write the versions, the device and the command of a run."""
    packages = {}
    for name in PACKAGES:
        try:
            packages[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue  # not installed
    content = {
        "gspool": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device": device,
        "cuda": torch.version.cuda,
        "threads": torch.get_num_threads(),
        "packages": packages,
        "command": sys.argv,
    }
    write_atomic(folder / VERSIONS, json.dumps(content, indent=2).encode())


def write_result(folder: Path, content: dict[str, Any]) -> None:
    """Write the figures of a finished run; a run is complete when this file exists."""
    write_atomic(folder / RESULT, (json.dumps(content, indent=2) + "\n").encode())


def read_result(folder: Path) -> dict[str, Any] | None:
    """Return the figures of a run, or None if it has not finished."""
    path = folder / RESULT
    if not path.exists():
        return None
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is damaged ({error}); delete it, and resume the run to write it again") from error


@contextmanager
def log_to(folder: Path) -> Iterator[logging.Logger]:
    """Append log messages to log.txt of the run; of several processes the first one writes."""
    if process_rank() > 0:
        yield log
        return
    handler = logging.FileHandler(folder / LOG, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield log
    finally:
        log.removeHandler(handler)
        log.setLevel(level)
        handler.close()
