"""Train one model on resident data, keep the best, measure it on the test set."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import torch

from gspool.experiments.crew import steps_under_way
from gspool.experiments.resident.captured_learner import own_stream
from gspool.experiments.resident.course import ResidentCourse
from gspool.experiments.resident.unfinished import go_on, keep

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

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
    unfinished: Path | None = None,
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
        unfinished: a file for the state of a run that time ends. Where it exists, the run goes on from there, and ends
            with the numbers of one that was never cut; it is deleted when the run has come to its end.

    Raises:
        ValueError: if a setting does not fit.
        DivergedError: if the loss is not finite.
    """
    with own_stream(torch.device(device)):
        course = ResidentCourse(settings, train, validation, test, torch.device(device), model)
        return _run(course, seconds, say, unfinished)


def _run(
    course: ResidentCourse, seconds: float | None, say: Callable[[str], None] | None, unfinished: Path | None
) -> Outcome:
    settings = course.settings
    begun = started = time.perf_counter()
    if unfinished is not None and unfinished.is_file():
        # As if it had begun that much earlier: figures count all of the run, the limit this call alone.
        started -= go_on(course, unfinished)
        course.began(started)
    ending: Ending = "max_steps"
    with steps_under_way(
        f"{settings.loss.name} {settings.model.pooling}", course.step, settings.trainer.max_steps
    ) as made:
        while course.step < settings.trainer.max_steps:
            course.make_step()
            made(_note(course))
            if course.step % settings.trainer.evaluate_every == 0 or course.step == settings.trainer.max_steps:
                course.evaluate(say)
                if course.monitor.stopped:
                    ending = "patience"
                    break
                if seconds is not None and time.perf_counter() - begun > seconds:
                    ending = "time"
                    break
    if unfinished is not None:
        if ending == "time":
            keep(course, unfinished, time.perf_counter() - started)
        else:
            unfinished.unlink(missing_ok=True)
    return course.finish(ending, started)


def _note(course: ResidentCourse) -> str:
    if not course.curve:
        return ""
    return f"MAP@R {100 * course.curve[-1]['map@r']:.2f}, best at step {course.monitor.best_step}"
