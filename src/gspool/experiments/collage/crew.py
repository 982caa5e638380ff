"""The trainings of the collage study side by side: processes that share maps and tiles in the memory of the device."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

from gspool.experiments.collage.recipe import Training
from gspool.experiments.collage.training import Ground, train_one
from gspool.experiments.crew import Broken, Crew, told_when_stopped, trainings_under_way

if TYPE_CHECKING:
    from gspool.experiments.ledger import Ledger


class TrainingsBrokenError(RuntimeError):
    """Some trainings broke; all others are done."""


def gather_crew(ground: Ground, device: str, processes: int) -> Crew:
    """Make the processes that train side by side; each begins when there is work for it, and stays.

    A training of small batches leaves most of a large GPU idle; several share it, and the data is there only once.
    """
    return Crew(_train, (ground, device), processes)


def train_missing(
    trainings: Sequence[Training],
    ground: Ground,
    device: str,
    ledger: Ledger,
    crew: Crew | None = None,
    say: Callable[[str], None] = print,
    seconds: float | None = None,
) -> None:
    """Make the trainings that the ledger does not hold, and write each down when it ends.

    A ``crew`` makes several at a time, those that take longest first, so that none of them trails at the end; where
    ``seconds`` are given they keep their order, because after so long no other begins. Those under way are finished.

    Raises:
        TrainingsBrokenError: if some trainings of a crew broke, after all others are done.
        SystemExit: after Ctrl-C or SIGTERM, with the status of the signal and a line about what is kept.
    """
    missing = [training for training in trainings if ledger.get(training.asked()) is None]
    if seconds is None:
        missing.sort(key=lambda training: -training.cost)
    say(f"{len(trainings) - len(missing)} of {len(trainings)} trainings are done, {len(missing)} to go")
    waiting = deque(missing)
    end = None if seconds is None else time.monotonic() + seconds

    def following() -> Training | None:
        late = end is not None and time.monotonic() > end
        return waiting.popleft() if waiting and not late else None

    kept, broken = 0, []
    with (
        told_when_stopped(lambda: kept, len(missing)),
        trainings_under_way(len(missing) if crew is not None else 0) as one_more,
    ):
        for training, found in _made(following, ground, device, crew):
            one_more()
            if isinstance(found, Broken):
                broken.append(f"{training}: {found.told}")
                say(f"broken: {broken[-1]}")
                continue
            ledger.put(training.asked(), found)
            kept += 1
            say(f"{kept}/{len(missing)} {_told(training, found)}")
    if waiting:
        say(f"time is up with {len(waiting)} trainings not begun")
    if broken:
        raise TrainingsBrokenError(f"{len(broken)} of {len(missing)} trainings broke, the others are done: {broken[0]}")


def _made(
    following: Callable[[], Training | None], ground: Ground, device: str, crew: Crew | None
) -> Iterator[tuple[Training, Any]]:
    if crew is not None:
        yield from crew.answers(following)
        return
    while (training := following()) is not None:
        yield training, train_one(training, ground, device)


def _told(training: Training, found: dict[str, Any]) -> str:
    zsr = "+zsr" if training.zsr else ""
    which = f"{training.backbone} {training.data} {training.pooling}{zsr} {training.loss} seed {training.seed}"
    return f"{which}: MAP@R {found['map@r']:.4f}, {found['steps']} steps, {found['seconds']} s"


def _train(ground: Ground, device: str, training: Training) -> dict[str, Any]:
    """Make one training; runs in a process of its own."""
    torch.set_float32_matmul_precision("high")
    return train_one(training, ground, device)
