"""Many trainings on one device, several at a time: processes that share the images in its memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from gspool.experiments.crew import make_trainings
from gspool.experiments.resident.outcome import Outcome
from gspool.experiments.resident.pace import Pace
from gspool.experiments.resident.prototype_start import start_from_tokens
from gspool.experiments.resident.shared_embedding import share_embedding
from gspool.experiments.resident.train import train_resident
from gspool.experiments.resident.waiting import Waiting
from gspool.training.build import build_model

if TYPE_CHECKING:
    from gspool.experiments.resident.images import ResidentSet
    from gspool.training import TrainConfig


class Job(NamedTuple):
    """One training: what it answers, its settings, which classes it learns from and is watched on.

    ``token_start`` images choose the prototypes before the first step, where it is not 0. ``embedding_like`` are the
    settings of the model whose embedding it begins with. ``unfinished`` is the file for its state where time ends it:
    it goes on from there when it is made again.
    """

    asked: dict[str, Any]
    settings: TrainConfig
    train_classes: list[int]
    validation_classes: list[int]
    token_start: int = 0
    embedding_like: TrainConfig | None = None
    unfinished: Path | None = None


def train_all(
    jobs: Sequence[Job],
    train: ResidentSet,
    test: ResidentSet,
    device: torch.device | str,
    on_outcome: Callable[[Job, Outcome], None],
    *,
    processes: int = 1,
    seconds: float | None = None,
    pace: Pace | None = None,
) -> list[Job]:
    """Make every training, ``processes`` of them at a time, and hand over each outcome as soon as it is there.

    One training of small batches leaves most of a large GPU idle; several share it. The pixels are in memory once,
    whatever the number of processes.

    Args:
        jobs: what to train, in this order.
        train: images of all training classes.
        test: images to measure on.
        device: where the images are.
        on_outcome: called in this process with every finished training.
        processes: how many at a time; 1 trains in this process.
        seconds: no training begins that would not end within this time, going by ``pace``, nor any after it: what is
            done is always the first of the jobs. Trainings under way then end at their next evaluation.
        pace: how long trainings take, where something is known about it beforehand.

    Returns:
        The jobs that were not begun for want of time.

    Raises:
        RuntimeError: if a training broke, after all others are done.
        SystemExit: after Ctrl-C or SIGTERM, with the status of the signal and a line about what is kept. Processes end
            between two steps.
    """
    end = None if seconds is None else time.time() + seconds
    queue = Waiting(jobs, end, Pace() if pace is None else pace)

    def ended(number: int, packed: _Packed) -> None:
        outcome = _unpacked(packed)
        queue.note(jobs[number], outcome)
        on_outcome(jobs[number], outcome)

    make_trainings(
        _train_one,
        (list(jobs), train, test, str(device), end),
        queue.next,
        of=len(jobs),
        processes=processes,
        keep=ended,
        name=lambda number: str(jobs[number].asked),
    )
    return queue.left()


def run_job(
    job: Job, train: ResidentSet, test: ResidentSet, device: torch.device | str, end: float | None = None
) -> Outcome:
    """Make one training, on its own classes."""
    settings = job.settings
    learned_from = train.of_classes(job.train_classes)
    validation = train.of_classes(job.validation_classes) if job.validation_classes else None
    model = build_model(settings).to(device)
    if job.embedding_like is not None:
        share_embedding(model, build_model(job.embedding_like))
    if job.token_start:
        side, seed = model.pixels.crop[0], settings.trainer.seed
        start_from_tokens(model, learned_from, settings.data, side, job.token_start, seed)
    seconds = None if end is None else max(end - time.time(), 0.0)
    return train_resident(
        settings, learned_from, validation, test, device, model=model, seconds=seconds, unfinished=job.unfinished
    )


def _train_one(
    jobs: Sequence[Job], train: ResidentSet, test: ResidentSet, device: str, end: float | None, number: int
) -> _Packed:
    """Make the training of this number; runs in a process of its own."""
    return _packed(run_job(jobs[number], train, test, device, end))


class _Packed(NamedTuple):
    """An outcome with arrays for tensors: a tensor in a queue lives in a process that may end before it is read."""

    fields: dict[str, Any]
    embeddings: Any
    gallery: Any


def _packed(outcome: Outcome) -> _Packed:
    gallery = None if outcome.gallery is None else outcome.gallery.numpy()
    return _Packed(outcome.record(), outcome.embeddings.numpy(), gallery)


def _unpacked(packed: _Packed) -> Outcome:
    gallery = None if packed.gallery is None else torch.from_numpy(packed.gallery)
    return Outcome(**packed.fields, embeddings=torch.from_numpy(packed.embeddings), gallery=gallery)
