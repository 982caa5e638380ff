"""The trainings of a benchmark: which are wanted, which are missing, side by side, each kept when it ends."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
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
from gspool.experiments.resident import Job, Pace, ResidentSet, load_resident, train_all
from gspool.provenance import origin_here
from gspool.training.parsing import plain

if TYPE_CHECKING:
    from gspool.experiments.benchmark.store import Store
    from gspool.experiments.experiment import RunOptions
    from gspool.experiments.resident import Outcome
    from gspool.training import TrainConfig

LIBRARIES = ("pytorch-metric-learning", "torchvision")
# A training's seed is so many times that of its repeat, and its fold.
APART = 1_000


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


def jobs_of(study: Study, labels: torch.Tensor, options: RunOptions, weights: str | None = None) -> list[Job]:
    """List every training of a study in the order in which it tells most, wherever it is cut off.

    Repeat by repeat; in each, first the paper's settings over all folds, then the settings tried beyond them, fold by
    fold. The arms of a fold stand together: they begin from the same seed, see the same batches and the same crops, so
    that their differences are paired. ``weights`` is what the file of the weights is called; None for its own name.
    """
    protocol = PROTOCOLS[study.protocol]
    precision = "bf16-mixed" if torch.device(options.device).type == "cuda" else "32-true"
    by_fold = {fold: protocol.fold(labels, fold) for fold in study.folds}
    rounds = [[arm for arm in study.arms if bool(arm.variant) == beyond] for beyond in (False, True)]
    jobs = []
    for seed, arms, fold in itertools.product(study.seeds, rounds, study.folds):
        for arm in arms:
            settings = _settings(arm, study, APART * seed + fold, precision, options.quick)
            like = None
            if study.protocol == "fair" and draws_apart(arm):
                like = _settings(Arm(arm.loss, "gsp"), study, APART * seed + fold, precision, options.quick)
            asked = {
                "arm": arm.name,
                "loss": arm.loss,
                "pooling": arm.pooling,
                "variant": arm.variant,
                "fold": fold,
                "seed": seed,
                "settings": fingerprint(settings, arm, like, weights),
            }
            classes = by_fold[fold]
            train, validation = classes.train_classes.tolist(), classes.validation_classes.tolist()
            jobs.append(Job(asked, settings, train, validation, arm.token_start, like))
    return jobs


def _settings(arm: Arm, study: Study, seed: int, precision: str, quick: bool) -> TrainConfig:
    settings = settings_of(arm, study.data, study.protocol, study.backbone, study.weights, seed, precision)
    if study.max_steps:
        settings.trainer.max_steps = study.max_steps
    return made_tiny(settings) if quick else settings


def draws_apart(arm: Arm) -> bool:
    """Say whether an arm would draw another embedding than GSP does from the same seed.

    On validation classes, pairs of ProxyNCA++ whose embeddings were drawn apart differ by as much as runs of different
    seeds do, and pairs of C2 by half of that.

    Example:
        >>> [draws_apart(Arm("c2", name)) for name in ("gap", "gsp", "gmp+gsp")]
        [True, False, True]
    """
    options = arm.pooling_options
    return arm.pooling != "gsp" or "prototypes" in options or options.get("embedding") == "after"


def fingerprint(settings: Any, arm: Arm, like: Any = None, weights: str | None = None) -> str:
    """Tell settings apart, so that a result is never taken for that of others.

    Weights count by the name given, which is that of their content where a store is at hand, else by their file's;
    the folder they lie in does not.
    """
    content = plain(settings)
    file = content["model"]["backbone_options"].pop("weights", None)
    known = {
        "settings": {name: content[name] for name in ("data", "model", "loss", "optimiser", "schedule", "trainer")},
        "weights": None if file is None else weights or Path(file).name,
        "token_start": arm.token_start,
        **({} if like is None else {"embedding_like": like.model.pooling}),
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


def labels_of(study: Study, options: RunOptions) -> Ground:
    """Give the labels of a benchmark with a single pixel an image: enough for figures of what has been trained."""
    if options.quick:
        return stand_in(options.device)
    sets = [data_sets.create(study.data, options.root, split) for split in ("train", "test")]
    asks = [None if each.roles is None else torch.tensor([role == "query" for role in each.roles]) for each in sets]
    pixels = [torch.zeros(len(each), 3, 1, 1, dtype=torch.uint8) for each in sets]
    return Ground(*(ResidentSet.of(pixels[i], sets[i].labels, asks[i]) for i in range(2)))


def train_missing(study: Study, ground: Ground, store: Store, options: RunOptions) -> None:
    """Make the trainings of a study that the store does not hold, and go on with those that time cut short.

    Raises:
        RuntimeError: if a training broke, after all others are done.
        ValueError: if there is no time for any training.
    """
    weights = None if study.weights is None else store.name_of_weights(Path(study.weights))
    jobs = jobs_of(study, ground.train.labels.cpu(), options, weights)
    for job in jobs:
        store.share(job.asked)
    missing = [
        job._replace(unfinished=store.unfinished(job.asked))
        for job in jobs
        if (store.get(job.asked) or {"ending": "time"})["ending"] == "time"
    ]
    print(f"{len(jobs) - len(missing)} of {len(jobs)} trainings are done, {len(missing)} to go", flush=True)

    # Once, and not with every training: the source may change meanwhile, and what runs does not.
    origin = origin_here(options.device, LIBRARIES)

    def kept(job: Job, outcome: Outcome) -> None:
        store.put(job, outcome, origin)
        flat = "" if outcome.entropy is None else f", entropy {outcome.entropy:.4f}"
        print(
            f"{job.asked['arm']}, fold {job.asked['fold']}, seed {job.asked['seed']}: test MAP@R "
            f"{100 * outcome.metrics['map@r']:.2f}{flat}, best step {outcome.best_step} of {outcome.steps} "
            f"({outcome.ending}), {outcome.seconds:.0f} s, {outcome.images_per_second:.0f} images/s",
            flush=True,
        )

    processes = 1 if options.quick else study.processes
    pace = Pace(
        (f"{run.asked['loss']} {run.asked['pooling']}", run.found["seconds"])
        for run in store.runs()
        if run.found["ending"] != "time"
    )
    left = train_all(missing, *ground, options.device, kept, processes=processes, seconds=study.seconds, pace=pace)
    if left and len(left) == len(jobs):
        raise ValueError(f"no time for any of {len(jobs)} trainings; give more --seconds")
    if left:
        print(f"no time for {len(left)} more; the same command goes on with them", flush=True)
