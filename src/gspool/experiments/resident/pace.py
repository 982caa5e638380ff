"""How long a training will take, going by those that have ended."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gspool.experiments.resident.fleet import Job


class Pace:
    """The usual length of a training of each kind so far; a kind is a loss and a pooling layer.

    Early stopping ends trainings after very different numbers of steps, so that the median is a better guess than the
    longest: with that, a device stands idle for the length of one training. One that is begun too late is cut short at
    an evaluation and can be gone on with.

    Args:
        known: kinds and seconds of earlier trainings, which count until one of this call has ended: those may have been
            made on another device, or fewer at a time.

    Example:
        >>> pace = Pace([("c2 gsp", 300.0)])
        >>> pace.expected("c2 gsp"), pace.expected("pnca gap"), Pace().expected("c2 gsp")
        (300.0, 300.0, 0.0)
        >>> pace.note("c2 gsp", 100.0)
        >>> pace.expected("c2 gsp"), pace.expected("pnca gap")
        (100.0, 100.0)
    """

    def __init__(self, known: Iterable[tuple[str, float]] = ()) -> None:
        self._known = _usual(known)
        self._noted: list[tuple[str, float]] = []

    def note(self, kind: str, seconds: float) -> None:
        """Take note of a training of this call that has come to its end."""
        self._noted.append((kind, seconds))

    def expected(self, kind: str) -> float:
        """Give the usual seconds of this kind, else the median of all kinds; 0 where nothing has ended yet.

        The slowest of them it was once: a single slow layer kept every new one from beginning.
        """
        noted = _usual(self._noted)
        for found in (noted, self._known):
            if kind in found:
                return found[kind]
        others = (noted or self._known).values()
        return median(others) if others else 0.0


def kind_of(job: Job) -> str:
    """Name what decides how long a training takes."""
    return f"{job.settings.loss.name} {job.settings.model.pooling}"


def _usual(ended: Iterable[tuple[str, float]]) -> dict[str, float]:
    by_kind: dict[str, list[float]] = {}
    for kind, seconds in ended:
        by_kind.setdefault(kind, []).append(seconds)
    return {kind: median(values) for kind, values in by_kind.items()}
