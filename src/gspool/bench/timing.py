"""Time several ways to do something in turns, so that a slow moment of the machine hits all of them."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch

# Rounds that are not counted: caches fill, libraries choose their kernels, Triton compiles.
WARM_UP = 3
# A median and a spread of fewer say little.
LEAST_REPEATS = 5


class Budget(NamedTuple):
    """How long to time: ``seconds`` for each that takes part, five rounds at least; or exactly ``repeats`` rounds."""

    seconds: float = 1.0
    repeats: int | None = None

    def spent(self, rounds: int, seconds: float, runs: int) -> float:
        """Give the part of the budget that is spent, 1 or more at its end.

        Example:
            >>> Budget(seconds=1.0).spent(rounds=20, seconds=1.0, runs=4)
            0.25
            >>> Budget(repeats=10).spent(rounds=5, seconds=99.0, runs=4)
            0.5
        """
        if self.repeats is not None:
            return rounds / self.repeats
        return min(rounds / LEAST_REPEATS, seconds / (self.seconds * runs))


class Spread(NamedTuple):
    """The median of some times, and between what the middle 80 % of them lie, in milliseconds."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, times: list[float]) -> Spread:
        """Summarise times.

        Example:
            >>> Spread.of([float(number) for number in range(101)])
            Spread(median=50.0, low=10.0, high=90.0)
        """
        if len(times) == 1:
            return cls(times[0], times[0], times[0])
        tenths = statistics.quantiles(times, n=10, method="inclusive")
        return cls(statistics.median(times), tenths[0], tenths[-1])

    def overlaps(self, other: Spread) -> bool:
        """Say whether the two cannot be told apart: their middles share some times."""
        return self.low <= other.high and other.low <= self.high


def milliseconds(run: Callable[[], object], device: torch.device) -> float:
    """Time one run: on a GPU by its own clock, from when it was idle to when it is idle again."""
    if device.type == "cuda":
        with torch.cuda.device(device):
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            torch.cuda.synchronize()
            start.record()
            run()
            end.record()
            torch.cuda.synchronize()
            return start.elapsed_time(end)
    begun = time.perf_counter()
    run()
    return 1e3 * (time.perf_counter() - begun)


def in_turns(
    runs: Mapping[str, Callable[[], object]],
    device: torch.device,
    budget: Budget,
    tell: Callable[[float], None] | None = None,
) -> dict[str, list[float]]:
    """Time all of them, one after the other, round after round; give the milliseconds of each.

    Args:
        runs: what to time, by name.
        device: where it computes.
        budget: for how long.
        tell: is given the part that is done, after every round.

    Example:
        >>> times = in_turns({"sum": lambda: sum(range(9))}, torch.device("cpu"), Budget(repeats=7))
        >>> len(times["sum"])
        7
    """
    begun = time.perf_counter()
    for _ in range(WARM_UP):
        for run in runs.values():
            milliseconds(run, device)
        # Where one round alone takes longer than everything should, nothing is left that more of them would warm.
        if budget.repeats is None and time.perf_counter() - begun > budget.seconds * len(runs):
            break
    times: dict[str, list[float]] = {name: [] for name in runs}
    begun, rounds = time.perf_counter(), 0
    while (done := budget.spent(rounds, time.perf_counter() - begun, len(runs))) < 1:
        if tell is not None:
            tell(done)
        for name, run in runs.items():
            times[name].append(milliseconds(run, device))
        rounds += 1
    return times


def busy_before() -> float | None:
    """Give how many programs wanted each core during the last minute, on average; None where the system keeps no count.

    Above about a half, other programs may take the time that is measured; threads that wait for each other then lose
    far more than their share.
    """
    return os.getloadavg()[0] / (os.cpu_count() or 1) if hasattr(os, "getloadavg") else None


def keep_freed_pages() -> None:
    """Do once what any network around a layer would have done: free a large block.

    It tells the C library's allocator to keep pages from then on. Without it, a layer timed alone on a CPU asks the
    system for every larger tensor anew, and waits for it to be filled with zeros.
    """
    torch.ones(7_500_000)
