"""The trainings of the classification, one after the other or side by side on one device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import multiprocessing

from gspool import data as data_sets
from gspool.data.location import data_root
from gspool.experiments.classification_batches import ClassifierSettings, hold_out
from gspool.experiments.classification_training import train_classifier
from gspool.experiments.image_fingerprint import fingerprint

if TYPE_CHECKING:
    from gspool.data import ImageSet


# The name of the pooling layer in the table, and the seed.
Key = tuple[str, int]


class Job(NamedTuple):
    """One training: which images, how much of them is held out, and how it goes."""

    data: str
    root: Path | None
    partial: bool
    held_out: float
    settings: ClassifierSettings
    device: str
    # Of the images, where ``data`` alone does not say which they are.
    fingerprint: str | None = None

    def asked(self, name: str) -> dict[str, Any]:
        """Give it as plain data, by which it is found again when it is finished."""
        images = {} if self.fingerprint is None else {"images": self.fingerprint}
        return {"name": name, "data": self.data, **images, "held_out": self.held_out, **asdict(self.settings)}


def train_jobs(jobs: Mapping[Key, Job], processes: int) -> Iterator[tuple[Key, dict[str, Any]]]:
    """Make the trainings and give each by its key when it ends, as plain figures.

    A ResNet20 leaves most of a large GPU idle; several share it, each from a process of its own.
    """
    if processes <= 1:
        yield from ((key, train_job(job)) for key, job in jobs.items())
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, context, initializer=torch.set_num_threads, initargs=(1,)) as crew:
        under_way = {crew.submit(train_job, job): key for key, job in jobs.items()}
        for future in as_completed(under_way):
            yield under_way[future], future.result()


def train_job(job: Job) -> dict[str, Any]:
    """Make one training."""
    learned, held_out, test = images_of(job.data, job.root, job.partial, job.held_out)
    return train_classifier(learned, held_out, test, job.settings, job.device)._asdict()


@cache
def images_of(data: str, root: Path | None, partial: bool, share: float) -> tuple[ImageSet, ImageSet, ImageSet]:
    """Read the images once in each process: to learn from, held out, to test."""
    train, test = sets_of(data, root, partial)
    return *hold_out(train, share), test


@cache
def sets_of(data: str, root: Path | None, partial: bool) -> tuple[ImageSet, ImageSet]:
    """List the images once in each process: a large folder takes its time."""
    options = {"allow_partial": True} if partial else {}
    return data_sets.create(data, root, "train", **options), data_sets.create(data, root, "test", **options)


def fingerprint_of(data: str, root: Path | None) -> str | None:
    """Give the fingerprint of pictures in somebody's folders; None for published data, whose name says which they are.

    Raises:
        FileNotFoundError: if there is no such folder.
        ValueError: if it holds no classes of pictures.

    Example:
        >>> fingerprint_of("cifar100", None) is None
        True
    """
    if data != "folder":
        return None
    sets = sets_of(data, root, False)
    place = data_root(root)
    return fingerprint(place.parent if place.is_file() else place, sets)
