"""Many trainings on one device, several at a time: processes that share the images in its memory."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import multiprocessing

from gspool.experiments.resident.outcome import Outcome
from gspool.experiments.resident.prototype_start import start_from_tokens
from gspool.experiments.resident.train import train_resident
from gspool.training.build import build_model

if TYPE_CHECKING:
    from gspool.experiments.resident.images import ResidentSet
    from gspool.training import TrainConfig


class Job(NamedTuple):
    """One training: what it answers, its settings, which classes it learns from and is watched on.

    ``token_start`` images choose the prototypes before the first step, where it is not 0.
    """

    asked: dict[str, Any]
    settings: TrainConfig
    train_classes: list[int]
    validation_classes: list[int]
    token_start: int = 0


class Failure(NamedTuple):
    """What a process says where a training broke."""

    asked: dict[str, Any]
    told: str


def train_all(
    jobs: Sequence[Job],
    train: ResidentSet,
    test: ResidentSet,
    device: torch.device | str,
    on_outcome: Callable[[Job, Outcome], None],
    *,
    processes: int = 1,
    seconds: float | None = None,
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
        seconds: after this long no other training begins, and those under way end at their next evaluation.

    Returns:
        The jobs that were not begun for want of time.

    Raises:
        RuntimeError: if a training broke, after all others are done.
    """
    end = None if seconds is None else time.time() + seconds
    if processes <= 1:
        for place, job in enumerate(jobs):
            if end is not None and time.time() > end:
                return list(jobs[place:])
            on_outcome(job, run_job(job, train, test, device, end))
        return []
    context = multiprocessing.get_context("spawn")
    asked, answered = context.Queue(), context.Queue()
    for number in range(len(jobs)):
        asked.put(number)
    arguments = (list(jobs), train, test, str(device), asked, answered, end)
    crew = [context.Process(target=_work, args=arguments) for _ in range(min(processes, len(jobs)))]
    for worker in crew:
        asked.put(None)
        worker.start()
    failures, undone = [], []
    for _ in jobs:
        number, answer = _next_answer(answered, crew)
        if isinstance(answer, Failure):
            failures.append(answer)
        elif answer is None:
            undone.append(jobs[number])
        else:
            on_outcome(jobs[number], _unpacked(answer))
    for worker in crew:
        worker.join()
    if failures:
        told = "\n".join(f"{failure.asked}: {failure.told}" for failure in failures)
        raise RuntimeError(f"{len(failures)} of {len(jobs)} trainings broke; the others are done. {told}")
    return undone


def run_job(
    job: Job, train: ResidentSet, test: ResidentSet, device: torch.device | str, end: float | None = None
) -> Outcome:
    """Make one training, on its own classes."""
    settings = job.settings
    learned_from = train.of_classes(job.train_classes)
    validation = train.of_classes(job.validation_classes) if job.validation_classes else None
    model = build_model(settings).to(device)
    if job.token_start:
        side, seed = model.pixels.crop[0], settings.trainer.seed
        start_from_tokens(model, learned_from, settings.data, side, job.token_start, seed)
    seconds = None if end is None else max(end - time.time(), 0.0)
    return train_resident(settings, learned_from, validation, test, device, model=model, seconds=seconds)


def _next_answer(answered: Any, crew: list[Any]) -> tuple[int, Any]:
    """Wait for an answer, and notice where every process has died without one."""
    from queue import Empty

    while True:
        try:
            return answered.get(timeout=5)
        except Empty:
            if not any(worker.is_alive() for worker in crew):
                raise RuntimeError(
                    "every process of the trainings has ended without an answer, killed for memory perhaps; "
                    "run fewer at a time"
                ) from None


def _work(
    jobs: list[Job], train: ResidentSet, test: ResidentSet, device: str, asked: Any, answered: Any, end: float | None
) -> None:
    """Take one job after the other until there are none; runs in a process of its own."""
    torch.set_num_threads(1)
    while (number := asked.get()) is not None:
        if end is not None and time.time() > end:
            answered.put((number, None))
            continue
        try:
            answered.put((number, _packed(run_job(jobs[number], train, test, device, end))))
        except Exception:
            # Whatever it was, the others go on, and the process that asked tells it.
            answered.put((number, Failure(jobs[number].asked, traceback.format_exc())))


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
