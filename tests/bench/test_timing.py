"""Steps as a program would run them, timed in turns."""

from __future__ import annotations

import time

import pytest
import torch
from torch import nn

from gspool.bench import timing
from gspool.bench.timing import (
    LEAST_REPEATS,
    WARM_UP,
    Spread,
    Step,
    in_turns,
    milliseconds,
    peak_memory,
    readable_failures,
)

CPU = torch.device("cpu")


def test_all_take_turns_so_that_a_slow_moment_hits_all_of_them():
    calls, told = [], []
    runs = {name: lambda name=name: calls.append(name) for name in "abc"}
    in_turns(runs, CPU, repeats=4, progress=told.append)
    assert "".join(calls) == "abc" * (WARM_UP + 4)
    assert told == [0.0, 0.25, 0.5, 0.75]


def test_the_first_rounds_are_not_counted():
    calls = []

    def cold_at_first():
        calls.append(None)
        time.sleep(0.05 if len(calls) <= WARM_UP else 0.0)

    times = in_turns({"it": cold_at_first}, CPU, repeats=5)["it"]
    assert len(times) == 5
    assert Spread.of(times).median < 25


def test_a_budget_of_seconds_is_kept_for_each_that_takes_part():
    runs = {name: lambda: time.sleep(0.002) for name in "ab"}
    begun = time.perf_counter()
    times = in_turns(runs, CPU, seconds=0.1)
    assert time.perf_counter() - begun >= 0.2
    assert len(times["a"]) == len(times["b"]) >= LEAST_REPEATS


def test_a_step_longer_than_the_budget_is_warmed_up_once_and_timed_five_times():
    calls = []

    def slow():
        calls.append(None)
        time.sleep(0.01)

    times = in_turns({"slow": slow}, CPU, seconds=0.001)["slow"]
    assert len(times) == LEAST_REPEATS
    assert len(calls) == LEAST_REPEATS + 1


def test_milliseconds_are_milliseconds():
    assert 20 <= milliseconds(lambda: time.sleep(0.02), CPU) < 2000


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
    assert timing.load_per_core() == 1.5
    monkeypatch.delattr(timing.os, "getloadavg")
    assert timing.load_per_core() is None


def test_a_training_step_leaves_the_gradients_of_one_step_however_often_it_is_made():
    layer, inputs = nn.Linear(5, 3), torch.randn(4, 5)
    step = Step(layer, inputs)
    for _ in range(3):
        step()
    torch.testing.assert_close(step.inputs.grad, step.incoming @ layer.weight)
    torch.testing.assert_close(layer.weight.grad, step.incoming.T @ inputs)
    step.forget()
    assert step.inputs.grad is None
    assert layer.weight.grad is None
    images = Step(layer, inputs, inputs_learn=False)
    images()
    assert images.inputs.grad is None


@pytest.mark.parametrize(
    ("dtype", "weights"),
    [(torch.bfloat16, torch.float32), (torch.float16, torch.float32), (torch.float64, torch.float64)],
)
def test_training_in_a_half_type_is_mixed_precision(dtype, weights):
    step = Step(nn.Linear(5, 3), torch.randn(4, 5, dtype=dtype), dtype)
    step()
    assert step.module.weight.dtype == step.module.weight.grad.dtype == weights
    assert step.forward().dtype == dtype


def test_inference_has_the_type_throughout_no_graph_and_evaluation_mode():
    module = nn.Sequential(nn.Linear(5, 3), nn.Dropout(0.5))
    step = Step(module, torch.randn(4, 5, dtype=torch.bfloat16), torch.bfloat16, backward=False)
    assert not module.training
    assert step.forward().dtype == torch.bfloat16
    assert not step.forward().requires_grad
    torch.testing.assert_close(step.forward(), step.forward())


def test_memory_is_counted_on_a_gpu_alone():
    assert peak_memory(Step(nn.Linear(5, 3), torch.randn(4, 5)), CPU) is None


@pytest.mark.parametrize(
    ("error", "dtype", "kind", "message"),
    [
        (
            RuntimeError("no 'Half'\ntrace"),
            torch.float16,
            ValueError,
            r"cbam cannot run in float16 on cpu \(no 'Half'\)",
        ),
        # A fault in float32 is a bug, and keeps its traceback.
        (RuntimeError("a fault"), torch.float32, RuntimeError, "a fault"),
        (torch.OutOfMemoryError("full"), torch.float32, ValueError, "cbam does not fit into the memory of cpu"),
    ],
)
def test_failures_that_a_user_can_change_are_said_in_words(error, dtype, kind, message):
    with pytest.raises(kind, match=message), readable_failures("cbam", dtype, CPU):
        raise error
