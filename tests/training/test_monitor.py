"""Best evaluation, early stopping, falling learning rates."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from gspool.training.loop import rate_factor
from gspool.training.monitor import Monitor

VALUES = [0.1, 0.3, 0.2, 0.3, 0.25, 0.4, 0.1, 0.1, 0.1, 0.1]


def test_the_rate_falls_when_torch_s_plateau_schedule_lets_it_fall():
    optimiser = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    reference = torch.optim.lr_scheduler.ReduceLROnPlateau(
        optimiser, mode="max", factor=0.5, patience=1, threshold=0.0, threshold_mode="abs"
    )
    monitor, rate = Monitor(plateau=1), 1.0
    for step, value in enumerate(VALUES):
        reference.step(value)
        rate *= 0.5 if monitor.judge(step, value).lr_falls else 1.0
        assert rate == optimiser.param_groups[0]["lr"], step
    assert rate < 1.0


def test_a_restored_monitor_goes_on_alike():
    whole = Monitor(patience=4, plateau=1)
    verdicts = [whole.judge(step, value) for step, value in enumerate(VALUES)]
    first, second = Monitor(patience=4, plateau=1), Monitor(patience=4, plateau=1)
    for step, value in enumerate(VALUES[:5]):
        first.judge(step, value)
    second.load_state_dict(first.state_dict())
    assert [second.judge(step, VALUES[step]) for step in range(5, len(VALUES))] == verdicts[5:]


@pytest.mark.parametrize("name", ["cosine", "one-cycle"])
@pytest.mark.parametrize("ramp", [0.0, 0.1, 0.5])
def test_rates_rise_then_fall_to_nothing(name, ramp):
    factors = [rate_factor(name, step, 200, ramp) for step in range(201)]
    peak = round(200 * ramp)
    assert factors[peak] == pytest.approx(1.0)
    assert factors[200] == pytest.approx(0.0, abs=1e-12)
    assert all(a < b for a, b in itertools.pairwise(factors[: peak + 1]))
    assert all(a > b for a, b in itertools.pairwise(factors[peak:]))
    assert factors[(200 + peak) // 2] == pytest.approx(0.5 * (1 + math.cos(math.pi / 2)), abs=0.02)
