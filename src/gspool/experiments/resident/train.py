"""Train one model on resident data, keep the best, measure it on the test set."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import torch

from gspool.experiments.resident.course import ResidentCourse

if TYPE_CHECKING:
    from collections.abc import Callable

    from gspool.experiments.resident.images import ResidentSet
    from gspool.experiments.resident.outcome import Ending, Outcome
    from gspool.training import TrainConfig


def train_resident(
    settings: TrainConfig,
    train: ResidentSet,
    validation: ResidentSet | None,
    test: ResidentSet,
    device: torch.device | str,
    *,
    model: Any = None,
    seconds: float | None = None,
    say: Callable[[str], None] | None = None,
) -> Outcome:
    """Train as ``settings`` say, restore the best evaluation, and measure it on ``test``.

    It makes the steps that `gspool.training.fit` makes of the same settings, without data loaders, checkpoints and
    Lightning: warm-up, frozen batch norm, prototype warm start, early stopping, reduction on a plateau. Where the
    transform is "crop", crops come from other draws of the same distribution.

    Args:
        settings: all of a run; its data set, devices and output are not used.
        train: images to learn from, labelled from 0 on.
        validation: images of other classes to watch; None where ``trainer.monitor_split`` is not "validation".
        test: images to measure on in the end.
        device: where the sets are and the model goes.
        model: a model of your own, such as a `FeatureMapEmbedder`; otherwise one is built from the settings.
        seconds: how long at most; a run that ends so says so in its outcome.
        say: told a line at every evaluation.

    Raises:
        ValueError: if a setting does not fit.
        DivergedError: if the loss is not finite.
    """
    started = time.perf_counter()
    course = ResidentCourse(settings, train, validation, test, torch.device(device), model)
    ending: Ending = "max_steps"
    while course.step < settings.trainer.max_steps:
        course.make_step()
        if course.step % settings.trainer.evaluate_every == 0 or course.step == settings.trainer.max_steps:
            course.evaluate(say)
            if course.monitor.stopped:
                ending = "patience"
                break
            if seconds is not None and time.perf_counter() - started > seconds:
                ending = "time"
                break
    return course.finish(ending, started)
