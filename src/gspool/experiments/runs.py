"""Trainings of an experiment: one on the training engine, and a few variants with every seed."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from multiprocessing import parent_process
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from gspool.executor.grid import Worker, run_grid
from gspool.executor.run_store import RunStore
from gspool.provenance import read_result, write_result

if TYPE_CHECKING:
    from torch import Tensor

    from gspool.data.image_set import Split
    from gspool.evaluation.folds import Fold
    from gspool.executor.run_store import Run
    from gspool.experiments.experiment import Experiment, RunOptions
    from gspool.training import FitResult, TrainerConfig
    from gspool.training.gpu_data import TensorSet

# What is asked of every variant with one seed.
Jobs = Callable[[int], Mapping[str, Mapping[str, Any]]]


def on_engine(trainer: TrainerConfig, device: str, seconds: float = 0.0, mixed: bool = False) -> None:
    """Set device, time limit and progress bar of a training; ``mixed`` uses bf16 on a GPU."""
    on_gpu = torch.device(device).type == "cuda"
    trainer.accelerator, trainer.max_seconds = "gpu" if on_gpu else "cpu", seconds
    trainer.precision = "bf16-mixed" if mixed and on_gpu else "32-true"
    # Files and worker processes get no progress bar.
    trainer.progress = sys.stderr.isatty() and parent_process() is None


def training_folder(folder: Path, asked: Mapping[str, Any]) -> Path:
    """Make the folder of a training's checkpoints, by a hash of what is asked for; remove it when the training ends."""
    key = hashlib.sha256(json.dumps(dict(asked), sort_keys=True).encode()).hexdigest()[:16]
    place = folder / "trainings" / key
    place.mkdir(parents=True, exist_ok=True)
    return place


def fold_sets(learning: TensorSet, test: TensorSet, classes: Fold) -> dict[Split, TensorSet]:
    """Return the sets of a fold of the classes to learn from; without validation where it holds none out."""
    parts: dict[Split, Tensor] = {"train": classes.train_classes, "validation": classes.validation_classes}
    return {**{split: learning.of_classes(own.tolist()) for split, own in parts.items() if len(own)}, "test": test}


def curve_line(result: FitResult) -> str:
    """Return the validation curve as results keep it, MAP@R in percent by step on one line."""
    return " ".join(f"{row['step']}:{100 * row['map@r']:.2f}" for row in result.curve)


class SeedRuns(NamedTuple):
    """The runs of all complete seeds, what they found by (variant, seed), and their entries in the store."""

    path: Path
    command: str
    seeds: tuple[int, ...]
    found: dict[tuple[str, int], dict[str, Any]]
    runs: list[Run]

    def write(self, value: Mapping[str, Any], without: str = "") -> None:
        """Write the result of these seeds and its runs, but for one entry of what they found, with their provenance."""
        origins = [run.origin for run in self.runs]
        whole = {**value, "runs": plain_runs(self.runs, without)}
        write_result(self.path, whole, command=self.command, seeds=self.seeds, origins=origins)


def plain_runs(runs: Iterable[Run], without: str = "") -> list[dict[str, Any]]:
    """Return runs as results hold them, one entry of what they found left out; with their origins if these differ."""
    runs = list(runs)
    alike = all(run.origin == runs[0].origin for run in runs)
    return [
        {
            "asked": run.asked,
            "found": {name: each for name, each in run.found.items() if name != without},
            **({} if alike else {"origin": run.origin}),
        }
        for run in runs
    ]


def run_seeds(
    experiment: Experiment,
    options: RunOptions,
    promised: Sequence[int],
    jobs: Jobs,
    make_worker: Callable[[], Worker],
    *,
    name: str = "",
    libraries: Sequence[str] = (),
) -> SeedRuns:
    """Run what is missing, and return the seeds whose variants are all finished.

    ``name`` is that of the result where it is not the first file of the experiment.
    """
    first = experiment.files[0]
    path = options.results / f"{name or first}.json"
    store = RunStore(options.work / first / "runs.jsonl", path, device=options.device, libraries=libraries)

    def finished(seed: int) -> bool:
        return all(store.get(asked) is not None for asked in jobs(seed).values())

    seeds = seeds_to_write(path, options.seeds_or(promised), finished)
    if not all(map(finished, seeds)):  # a worker loads data, which a finished study does not need
        tasks = [each for seed in seeds for each in jobs(seed).values()]
        run_grid(store, tasks, make_worker, options.executor, options.seconds)
    complete = tuple(seed for seed in seeds if finished(seed))
    if not complete:
        raise ValueError("no seed is complete, nothing was written; the same command continues, give more --seconds")
    found = {(name, seed): store.get(each) or {} for seed in complete for name, each in jobs(seed).items()}
    runs = store.runs(each for seed in complete for each in jobs(seed).values())
    return SeedRuns(path, experiment.command(options, complete), complete, found, runs)


def seeds_to_write(path: Path, asked: Sequence[int], finished: Callable[[int], bool]) -> tuple[int, ...]:
    """Return the seeds to write: those asked for, and those of the existing result whose runs are at hand."""
    before = read_result(path)["seeds"] if path.is_file() else []
    lost = [seed for seed in before if seed not in asked and not finished(seed)]
    if lost:
        every = ",".join(map(str, sorted({*asked, *before})))
        raise ValueError(
            f"{path} holds seeds {_listed(before)}; writing {_listed(asked)} would drop {_listed(lost)}: their runs "
            f"with these settings are not in the folder of --work. Run all with --seeds {every}, or write elsewhere "
            "with --results FOLDER"
        )
    return tuple(sorted({*asked, *before}))


def missing_seeds(promised: Sequence[int]) -> Callable[[Mapping[str, Any]], str]:
    """Return a function from a record to the seeds that it lacks, in words; empty where it has all.

    Example:
        >>> missing_seeds((0, 1, 2, 3))({"seeds": [0, 2]}), missing_seeds((0, 1))({"seeds": [0, 1]})
        ('2 of 4 seeds (1, 3)', '')
    """

    def missing(record: Mapping[str, Any]) -> str:
        left = [seed for seed in promised if seed not in record["seeds"]]
        return f"{len(left)} of {len(promised)} seeds ({_listed(left)})" if left else ""

    return missing


def _listed(seeds: Sequence[int]) -> str:
    return ", ".join(map(str, seeds))
