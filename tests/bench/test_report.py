"""What a person reads: the rows, and what the swap costs."""

from __future__ import annotations

import pytest
import torch

from gspool.bench.measure import Cost, Measured, Refused, Row
from gspool.bench.report import closing, shown, table
from gspool.bench.settings import Settings
from gspool.bench.timing import Spread


def cost(median: float, memory: int | None = None) -> Cost:
    return Cost(Spread(median, 0.9 * median, 1.1 * median), 10, memory)


def row(title: str, median: float, size: str = "7x7", network: float | None = None, memory: int | None = None) -> Row:
    whole = None if network is None else cost(network, memory)
    return Row(title, title.split()[0].split(":")[0], None, 0, 8, size, cost(median, memory), whole)


def measured(*rows: Row, device: str = "cpu", busy: float | None = 0.0, **settings: object) -> Measured:
    return Measured(Settings(batch=32, **settings), torch.device(device), [*rows], [], busy)


def cells(text: str) -> dict[str, list[str]]:
    head, *lines = text.splitlines()
    assert {len(line) for line in lines} == {len(head)}
    return {line.split()[0]: line.split()[1:] for line in lines}


def test_a_row_has_the_median_the_spread_the_rate_and_the_ratio():
    rows = cells(table(measured(row("gap", 2.0), row("gsp", 16.0))))
    assert rows["gap"] == ["2.000", "1.800-2.200", "16,000", "1.00"]
    assert rows["gsp"] == ["16.0", "14.4-17.6", "2,000", "8.00"]


def test_average_pooling_of_the_same_map_is_the_unit():
    one = measured(row("gap", 2.0), row("gmp", 3.0), row("gap", 8.0, "14x14"), row("gmp", 10.0, "14x14"))
    lines = table(one).splitlines()
    assert [line.split()[-1] for line in lines[1:]] == ["1.00", "1.50", "1.00", "1.25"]
    assert "14x14" in lines[3]


def test_a_gpu_has_a_column_of_memory():
    one = measured(row("gap", 2.0, memory=2**20), row("gsp", 3.0, memory=3 * 2**19), device="cuda")
    assert "peak MiB" in table(one)
    assert [line.split()[-1] for line in table(one).splitlines()[1:]] == ["1.0", "1.5"]
    assert "peak" not in table(measured(row("gap", 2.0)))


def test_the_closing_line_is_about_gsp_or_the_layer_named_last():
    line = closing(measured(row("gap", 2.0), row("gmp", 3.0), row("gsp", 16.0), row("solar", 99.0)))
    assert line.startswith("gsp instead of gap, map 7x7: 14 ms longer")
    assert "8.00 times GAP" in line
    assert closing(measured(row("gap", 2.0), row("gmp", 3.0), row("solar", 99.0))).startswith("solar instead of gap")
    assert "name a layer to compare" in closing(measured(row("gap", 2.0)))


def test_of_several_gsp_the_fastest_is_taken_on_every_map():
    rows = [row("gap", 2.0), row("gsp (torch)", 30.0), row("gsp (triton)", 4.0)]
    rows += [row("gap", 3.0, "9x9"), row("gsp (torch)", 40.0, "9x9"), row("gsp (triton)", 50.0, "9x9")]
    first, second = closing(measured(*rows)).split(". ")
    assert first.startswith("gsp (triton) instead of gap, map 7x7: 2 ms longer")
    assert second.startswith("gsp (torch) instead of gap, map 9x9: 37 ms longer")


@pytest.mark.parametrize(
    ("gsp", "network", "facts"),
    [
        (2.1, None, ["0.1 ms longer", "1.05 times GAP (within the spread)."]),
        (1.9, None, ["0.1 ms less", "(within the spread)."]),
        (3.0, None, ["1.50 times GAP."]),
        (16.0, 600.0, ["8.00 times GAP; ", "600 ms with it and 400 ms with gap, +50.0 %."]),
        (16.0, 410.0, ["+2.5 % (within the spread)."]),
    ],
)
def test_the_closing_line_has_the_difference_and_whether_it_is_within_the_spread(gsp, network, facts):
    model = None if network is None else "resnet20"
    rows = (row("gap", 2.0, network=network and 400.0), row("gsp", gsp, network=network))
    line = closing(measured(*rows, model=model))
    assert all(fact in line for fact in facts)
    assert line.count("spread") == sum(fact.count("spread") for fact in facts)


def test_in_a_network_a_row_has_the_change_and_the_share():
    one = measured(row("gap", 2.0, network=400.0), row("gsp", 16.0, network=600.0), model="resnet20")
    assert table(one).splitlines()[2].split()[-4:] == ["+50.0", "%", "2.7", "%"]


def test_what_was_left_out_is_said():
    one = measured(row("gap", 2.0), row("gsp (torch)", 3.0))._replace(refused=[Refused("gsp (triton)", "no GPU")])
    assert "left out: gsp (triton), because no GPU" in shown(one)


@pytest.mark.parametrize(("busy", "warning"), [(0.1, None), (None, None), (1.4, "the load was 1.4 per core")])
def test_a_busy_machine_is_warned_of(busy, warning):
    text = shown(measured(row("gap", 2.0), busy=busy))
    assert ("warning" in text) == (warning is not None)
    assert (warning or "") in text


def test_times_that_vary_widely_are_warned_of():
    unsteady = row("gsp", 4.0)._replace(alone=Cost(Spread(4.0, 2.0, 4.1), 10, None))
    assert "warning: the times of gsp vary widely" in shown(measured(row("gap", 2.0), unsteady))
