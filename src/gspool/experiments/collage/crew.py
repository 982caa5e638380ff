"""The trainings of the collage study side by side: processes that share maps and tiles in the memory of the device."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import TYPE_CHECKING, Any

import torch
from torch import multiprocessing

from gspool.experiments.collage.recipe import Training
from gspool.experiments.collage.training import Ground, train_one

if TYPE_CHECKING:
    from gspool.experiments.ledger import Ledger

# What a worker was given when it began; each worker is a process of its own.
_GIVEN: dict[str, Any] = {}


class TrainingsBrokenError(RuntimeError):
    """Some trainings broke; all others are done."""


def gather_crew(ground: Ground, device: str, processes: int) -> ProcessPoolExecutor:
    """Make the processes that train side by side; each begins when there is work for it, and stays.

    A training of small batches leaves most of a large GPU idle; several share it, and the data is there only once.
    """
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(processes, context, initializer=_begin, initargs=(ground, device))


def train_missing(
    trainings: Sequence[Training],
    ground: Ground,
    device: str,
    ledger: Ledger,
    crew: ProcessPoolExecutor | None = None,
    say: Callable[[str], None] = print,
    seconds: float | None = None,
) -> None:
    """Make the trainings that the ledger does not hold, and write each down when it ends.

    A ``crew`` makes several at a time, those that take longest first, so that none of them trails at the end; where
    ``seconds`` are given they keep their order, because after so long no other begins. Those under way are finished.

    Raises:
        TrainingsBrokenError: if some trainings of a crew broke, after all others are done.
    """
    missing = [training for training in trainings if ledger.get(training.asked()) is None]
    if seconds is None:
        missing.sort(key=lambda training: -training.cost)
    say(f"{len(trainings) - len(missing)} of {len(trainings)} trainings are done, {len(missing)} to go")
    broken: list[str] = []
    end = None if seconds is None else time.monotonic() + seconds

    def done(training: Training, found: dict[str, Any], number: int) -> None:
        ledger.put(training.asked(), found)
        zsr = "+zsr" if training.zsr else ""
        told = f"{training.backbone} {training.data} {training.pooling}{zsr} {training.loss} seed {training.seed}"
        figures = f"MAP@R {found['map@r']:.4f}, {found['steps']} steps, {found['seconds']} s"
        say(f"{number}/{len(missing)} {told}: {figures}")

    if crew is None:
        for number, training in enumerate(missing, start=1):
            if end is not None and time.monotonic() > end:
                say(f"time is up with {len(missing) - number + 1} trainings not begun")
                return
            done(training, train_one(training, ground, device), number)
        return
    under_way = {crew.submit(_train, training): training for training in missing}
    for number, future in enumerate(as_completed(under_way), start=1):
        if future.cancelled():
            continue
        wrong = future.exception()
        if wrong is not None:
            broken.append(f"{under_way[future]}: {wrong!r}")
            say(f"broken: {broken[-1]}")
        else:
            done(under_way[future], future.result(), number)
        if end is not None and time.monotonic() > end:
            not_begun = sum(each.cancel() for each in under_way)
            say(f"time is up with {not_begun} trainings not begun")
            end = None
    if broken:
        raise TrainingsBrokenError(f"{len(broken)} of {len(missing)} trainings broke, the others are done: {broken[0]}")


def _begin(ground: Ground, device: str) -> None:
    torch.set_num_threads(1)
    torch.set_float32_matmul_precision("high")
    _GIVEN.update(ground=ground, device=device)


def _train(training: Training) -> dict[str, Any]:
    return train_one(training, _GIVEN["ground"], _GIVEN["device"])
