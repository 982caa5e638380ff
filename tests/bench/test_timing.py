"""Time in turns: who is timed when, for how long, and what is counted."""

from __future__ import annotations

import time

import pytest
import torch

from gspool.bench import timing
from gspool.bench.timing import LEAST_REPEATS, WARM_UP, Budget, Spread, in_turns, milliseconds

CPU = torch.device("cpu")


def test_all_take_turns_so_that_a_slow_moment_hits_all_of_them():
    calls = []
    runs = {name: lambda name=name: calls.append(name) for name in "abc"}
    in_turns(runs, CPU, Budget(repeats=4))
    assert "".join(calls) == "abc" * (WARM_UP + 4)


def test_the_first_rounds_are_not_counted():
    calls = []

    def cold_at_first():
        calls.append(None)
        time.sleep(0.05 if len(calls) <= WARM_UP else 0.0)

    times = in_turns({"it": cold_at_first}, CPU, Budget(repeats=5))["it"]
    assert len(times) == 5
    assert Spread.of(times).median < 25


def test_a_budget_of_seconds_is_kept_for_each_that_takes_part():
    runs = {name: lambda: time.sleep(0.002) for name in "ab"}
    begun = time.perf_counter()
    times = in_turns(runs, CPU, Budget(seconds=0.1))
    assert time.perf_counter() - begun >= 0.2
    assert len(times["a"]) == len(times["b"]) >= LEAST_REPEATS


def test_a_step_longer_than_the_budget_is_warmed_up_once_and_timed_five_times():
    calls = []

    def slow():
        calls.append(None)
        time.sleep(0.01)

    times = in_turns({"slow": slow}, CPU, Budget(seconds=0.001))["slow"]
    assert len(times) == LEAST_REPEATS
    assert len(calls) == LEAST_REPEATS + 1


def test_milliseconds_are_milliseconds():
    assert 20 <= milliseconds(lambda: time.sleep(0.02), CPU) < 200


def test_progress_goes_from_nothing_towards_all():
    told = []
    in_turns({"it": lambda: None}, CPU, Budget(repeats=4), told.append)
    assert told == [0.0, 0.25, 0.5, 0.75]


def test_the_spread_is_that_of_the_middle_and_order_does_not_matter():
    times = [float(number) for number in range(101)]
    assert Spread.of(times[::-1]) == Spread(50.0, 10.0, 90.0)
    assert Spread.of([3.0]) == Spread(3.0, 3.0, 3.0)
    # One outlier in ten moves neither the median nor the lower end.
    assert Spread.of([1.0] * 9 + [1000.0])[:2] == (1.0, 1.0)


@pytest.mark.parametrize(
    ("other", "told_apart"),
    [(Spread(9.0, 7.9, 11.0), True), (Spread(5.0, 4.0, 6.0), False), (Spread(8.0, 6.5, 9.0), False)],
)
def test_spreads_that_share_times_cannot_be_told_apart(other, told_apart):
    ours = Spread(6.0, 5.0, 7.0)
    assert ours.overlaps(other) == other.overlaps(ours) == (not told_apart)


def test_how_busy_the_machine_was_is_counted_by_core(monkeypatch):
    monkeypatch.setattr(timing.os, "getloadavg", lambda: (3.0, 0.0, 0.0))
    monkeypatch.setattr(timing.os, "cpu_count", lambda: 2)
    assert timing.busy_before() == 1.5
    monkeypatch.delattr(timing.os, "getloadavg")
    assert timing.busy_before() is None
