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


def test_the_closing_line_says_what_the_swap_costs():
    assert closing(measured(row("gap", 2.0), row("gmp", 3.0), row("gsp", 16.0), row("solar", 99.0))) == (
        "gsp instead of gap, map 7x7: 14 ms longer per step of 32 images, 8.00 times GAP."
    )


def test_without_gsp_the_swap_is_to_the_layer_named_last():
    assert closing(measured(row("gap", 2.0), row("gmp", 3.0), row("solar", 99.0))).startswith("solar instead of gap")
    assert "name a layer to compare" in closing(measured(row("gap", 2.0)))


def test_of_several_gsp_the_fastest_is_taken_and_every_map_is_told():
    rows = [row("gap", 2.0), row("gsp (torch)", 30.0), row("gsp (triton)", 4.0)]
    rows += [row("gap", 3.0, "9x9"), row("gsp (torch)", 40.0, "9x9"), row("gsp (triton)", 50.0, "9x9")]
    first, second = closing(measured(*rows)).split(". ")
    assert first.startswith("gsp (triton) instead of gap, map 7x7: 2 ms longer")
    assert second.startswith("gsp (torch) instead of gap, map 9x9: 37 ms longer")


def test_what_cannot_be_told_from_noise_is_called_so():
    assert closing(measured(row("gap", 2.0), row("gsp", 2.1))).endswith("1.05 times GAP (within the spread).")
    assert "0.1 ms less" in closing(measured(row("gap", 2.0), row("gsp", 1.9)))
    assert "within the spread" not in closing(measured(row("gap", 2.0), row("gsp", 3.0)))


def test_in_a_network_the_swap_is_that_of_the_whole_step():
    one = measured(row("gap", 2.0, network=400.0), row("gsp", 16.0, network=600.0), model="resnet20")
    assert closing(one).endswith("the whole step of resnet20 takes 600 ms with it and 400 ms with gap, +50.0 %.")
    assert table(one).splitlines()[2].split()[-4:] == ["+50.0", "%", "2.7", "%"]
    near = measured(row("gap", 2.0, network=400.0), row("gsp", 16.0, network=410.0), model="resnet20")
    assert closing(near).endswith("+2.5 % (within the spread).")


def test_what_was_left_out_is_said():
    one = measured(row("gap", 2.0), row("gsp (torch)", 3.0))._replace(refused=[Refused("gsp (triton)", "no GPU")])
    assert "left out: gsp (triton), because no GPU" in shown(one)


@pytest.mark.parametrize(("busy", "warned"), [(0.1, False), (None, False), (1.4, True)])
def test_a_busy_machine_is_warned_of(busy, warned):
    assert ("warning: the load was 1.4 per core" in shown(measured(row("gap", 2.0), busy=busy))) == warned
    assert ("warning" in shown(measured(row("gap", 2.0), busy=busy))) == warned


def test_times_that_vary_widely_are_warned_of():
    unsteady = row("gsp", 4.0)._replace(alone=Cost(Spread(4.0, 2.0, 4.1), 10, None))
    assert "warning: the times of gsp vary widely" in shown(measured(row("gap", 2.0), unsteady))
    assert "warning" not in shown(measured(row("gap", 2.0), row("gsp", 4.0)))
