"""The trainings of a benchmark: which are wanted, which are missing, side by side, each kept when it ends."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from gspool import data as data_sets
from gspool.evaluation import PROTOCOLS
from gspool.experiments.benchmark.arms import Arm, settings_of
from gspool.experiments.benchmark.stand_in import Ground, made_tiny, stand_in
from gspool.experiments.resident import Job, load_resident, train_all
from gspool.training.parsing import plain

if TYPE_CHECKING:
    from gspool.experiments.benchmark.store import Store
    from gspool.experiments.experiment import RunOptions
    from gspool.experiments.resident import Outcome


@dataclasses.dataclass(frozen=True)
class Study:
    """What is to be trained: every arm on every fold with every seed.

    ``max_steps`` is an end for runs that early stopping does not end, 0 for none.
    """

    data: str
    protocol: str
    arms: tuple[Arm, ...]
    folds: tuple[int, ...]
    seeds: tuple[int, ...]
    backbone: str = "keras/resnet50"
    weights: str | None = None
    processes: int = 8
    seconds: float | None = None
    max_steps: int = 0


def jobs_of(study: Study, labels: torch.Tensor, options: RunOptions) -> list[Job]:
    """List every training of a study, seeds outermost, so that a first round over everything comes early.

    All arms of a (fold, seed) begin from the same seed, see the same batches and the same crops: their differences are
    paired.
    """
    protocol = PROTOCOLS[study.protocol]
    precision = "bf16-mixed" if torch.device(options.device).type == "cuda" else "32-true"
    jobs = []
    for seed in study.seeds:
        for fold in study.folds:
            classes = protocol.fold(labels, fold)
            for arm in study.arms:
                settings = settings_of(
                    arm, study.data, study.protocol, study.backbone, study.weights, 1_000 * seed + fold, precision
                )
                if study.max_steps:
                    settings.trainer.max_steps = study.max_steps
                if options.quick:
                    settings = made_tiny(settings)
                asked = {
                    "arm": arm.name,
                    "loss": arm.loss,
                    "pooling": arm.pooling,
                    "variant": arm.variant,
                    "fold": fold,
                    "seed": seed,
                    "settings": fingerprint(settings, arm),
                }
                train, validation = classes.train_classes.tolist(), classes.validation_classes.tolist()
                jobs.append(Job(asked, settings, train, validation, arm.token_start))
    return jobs


def fingerprint(settings: Any, arm: Arm) -> str:
    """Tell settings apart, so that a result is never taken for that of others; paths of weights do not count."""
    content = plain(settings)
    weights = content["model"]["backbone_options"].pop("weights", None)
    known = {
        "settings": {name: content[name] for name in ("data", "model", "loss", "optimiser", "schedule", "trainer")},
        "weights": None if weights is None else Path(weights).name,
        "token_start": arm.token_start,
    }
    return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()[:16]


def ground_of(study: Study, options: RunOptions) -> Ground:
    """Bring the images of a benchmark to the device, or the stand-in's for the tiny version.

    Raises:
        FileNotFoundError: if the data is not there; the message says what to put where.
    """
    if options.quick:
        return stand_in(options.device)
    sets = [data_sets.create(study.data, options.root, split) for split in ("train", "test")]
    workers, shown = os.cpu_count() or 1, sys.stderr.isatty()
    return Ground(*(load_resident(images, options.device, workers=workers, progress=shown) for images in sets))


def train_missing(study: Study, ground: Ground, store: Store, options: RunOptions) -> None:
    """Make the trainings of a study that the store does not hold, and again those that time cut short.

    Raises:
        RuntimeError: if a training broke, after all others are done.
    """
    jobs = jobs_of(study, ground.train.labels.cpu(), options)
    missing = [job for job in jobs if (store.get(job.asked) or {"ending": "time"})["ending"] == "time"]
    print(f"{len(jobs) - len(missing)} of {len(jobs)} trainings are done, {len(missing)} to go", flush=True)

    def kept(job: Job, outcome: Outcome) -> None:
        store.put(job, outcome)
        flat = "" if outcome.entropy is None else f", entropy {outcome.entropy:.4f}"
        print(
            f"{job.asked['arm']}, fold {job.asked['fold']}, seed {job.asked['seed']}: test MAP@R "
            f"{100 * outcome.metrics['map@r']:.2f}{flat}, best step {outcome.best_step} of {outcome.steps} "
            f"({outcome.ending}), {outcome.seconds:.0f} s, {outcome.images_per_second:.0f} images/s",
            flush=True,
        )

    processes = 1 if options.quick else study.processes
    train_all(missing, *ground, options.device, kept, processes=processes, seconds=study.seconds)
