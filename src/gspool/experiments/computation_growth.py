"""How the time of a solver grows with the number k of its iterations, and whether the paper's promise is kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from gspool.experiments.experiment import Verdict

Rows = Sequence[Mapping[str, Any]]
# "Does not grow": the backward takes at most so many times as long with the largest k as with the smallest.
HARDLY = 2.0
# "In part": it grows by more, but by less than so much of the factor by which the unrolled one grows.
SPARED = 0.5


def backward(row: Mapping[str, Any]) -> float:
    """Give the time of the backward alone: forward and backward, less forward.

    Example:
        >>> backward({"step_ms": 3.5, "forward_ms": 1.5})
        2.0
    """
    return float(row["step_ms"] - row["forward_ms"])


def forward(row: Mapping[str, Any]) -> float:
    """Give the time of the forward alone."""
    return float(row["forward_ms"])


class Growth(NamedTuple):
    """What something takes with the smallest k and with the largest, in milliseconds."""

    first: float
    last: float

    @property
    def known(self) -> bool:
        """Whether both are above 0; a difference of two medians may fall below, where the clock is too coarse."""
        return min(self) > 0

    @property
    def times(self) -> float:
        """How many times as long it takes with the largest k."""
        return self.last / self.first

    @property
    def shown(self) -> str:
        """All in words.

        Example:
            >>> Growth(0.5, 4.0).shown
            '8.0 times (0.50 to 4.00 ms)'
        """
        return f"{self.times:.1f} times ({self.first:.2f} to {self.last:.2f} ms)"


def growth(rows: Rows, way: str, part: Callable[[Mapping[str, Any]], float] = backward) -> Growth:
    """Give how a part of a step grows from the smallest k to the largest.

    Example:
        >>> rows = [{"way": "unrolled", "k": k, "forward_ms": 1.0, "step_ms": ms} for k, ms in ((10, 5.0), (1, 1.5))]
        >>> growth(rows, "unrolled").times
        8.0
    """
    own = sorted((row for row in rows if row["way"] == way), key=lambda row: int(row["k"]))
    return Growth(part(own[0]), part(own[-1]))


def reach(rows: Rows) -> tuple[int, int]:
    """Give the smallest and the largest k."""
    steps = [row["k"] for row in rows if row["k"] is not None]
    return min(steps), max(steps)


def told(rows: Rows) -> str:
    """Write how the backward alone grows by the closed form and unrolled, or that the clock did not tell it apart."""
    closed, unrolled = growth(rows, "closed form"), growth(rows, "unrolled")
    if not (closed.known and unrolled.known):
        return "a backward came out at 0 ms or less, as the difference of two medians"
    return f"{closed.shown}, unrolled {unrolled.shown}"


def seen(rows: Rows) -> Verdict:
    """Judge the promise by the backward alone, from the smallest k to the largest.

    "Yes" where it takes at most twice as long by the closed form, "partly" where that grows by more, but by less than
    half the factor of the unrolled one; "no" otherwise.

    Example:
        >>> ways = (("closed form", 1.0, 1.1), ("unrolled", 1.0, 50.0))
        >>> both = [(way, k, ms) for way, *times in ways for k, ms in zip((1, 100), times)]
        >>> seen([{"way": way, "k": k, "forward_ms": k, "step_ms": k + ms} for way, k, ms in both]).holds
        'yes'
    """
    first, last = reach(rows)
    closed, unrolled = growth(rows, "closed form"), growth(rows, "unrolled")
    because = f"backward alone, from k = {first} to {last}: {told(rows)}"
    if not (closed.known and unrolled.known):
        return Verdict("cannot tell", because)
    because += f"; forward, which makes the iterations: {growth(rows, 'closed form', forward).shown}"
    if closed.times <= HARDLY:
        return Verdict("yes", because)
    return Verdict("partly" if closed.times < SPARED * unrolled.times else "no", because)
