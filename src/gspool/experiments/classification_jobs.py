"""The trainings of the classification, one after the other or side by side on one device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from gspool import data as data_sets
from gspool.data.location import data_root
from gspool.experiments.classification_batches import ClassifierSettings, hold_out
from gspool.experiments.classification_training import train_classifier
from gspool.experiments.crew import make_trainings
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


def train_jobs(jobs: Mapping[Key, Job], processes: int, on_found: Callable[[Key, dict[str, Any]], None]) -> None:
    """Make the trainings, and hand over each by its key when it ends, as plain figures.

    A ResNet20 leaves most of a large GPU idle; several share it, each from a process of its own.

    Raises:
        RuntimeError: if some trainings of several processes broke, after all others are done.
        SystemExit: after Ctrl-C or SIGTERM, with the status of the signal and a line about what is kept.
    """
    waiting = iter(jobs.items())
    make_trainings(
        train_job,
        (),
        lambda: next(waiting, None),
        of=len(jobs),
        processes=processes,
        keep=lambda item, found: on_found(item[0], found),
        name=lambda item: str(item[0]),
    )


def train_job(item: tuple[Key, Job]) -> dict[str, Any]:
    """Make one training."""
    _, job = item
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
