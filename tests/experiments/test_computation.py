"""What the computation study says of its times: the backward is judged alone, and the forward is not hidden."""

from __future__ import annotations

from pathlib import Path

import pytest

from gspool.experiments import computation, computation_section
from gspool.experiments.computation_growth import backward, growth, seen
from gspool.provenance import read_result

Times = dict[int, float]


def solver_rows(closed: Times, unrolled: Times, forward: float = 0.4, error: float = 2e-7) -> list[dict]:
    """Rows whose backward takes these milliseconds, and whose forward takes so many of every iteration."""
    exact = {"way": "exact solver", "k": None, "forward_ms": 1.0, "step_ms": 3.0, "relative_error": 4e-7}
    rows = [exact]
    for way, times in (("closed form", closed), ("unrolled", unrolled)):
        for k, milliseconds in times.items():
            figures = {"forward_ms": forward * k, "step_ms": forward * k + milliseconds}
            rows.append({"way": way, "k": k, **figures, "relative_error": error if k >= 10 else 1e-2})
    return [{**row, "forward_std_ms": 0.1, "step_std_ms": 0.1} for row in rows]


STEEP = {1: 1.0, 10: 9.0, 100: 40.0}


@pytest.mark.parametrize(
    ("last", "holds"),
    # Up to twice counts as constant, and up to half the factor of the unrolled one, which is 40, as kept in part.
    [(1.0, "yes"), (1.9, "yes"), (2.1, "partly"), (19.0, "partly"), (21.0, "no"), (-0.1, "cannot tell")],
)
def test_back_propagation_is_judged_without_the_forward(last: float, holds: str) -> None:
    rows = solver_rows({1: 1.0, 10: 30.0, 100: last}, STEEP)
    assert seen(rows).holds == holds
    # However long the forward takes, it changes nothing.
    assert seen(solver_rows({1: 1.0, 10: 30.0, 100: last}, STEEP, forward=7.0)).holds == holds


def test_the_growth_of_the_forward_is_said_and_so_is_the_rule() -> None:
    rows = solver_rows({1: 1.0, 10: 1.0, 100: 3.0}, STEEP)
    said = computation_section.grown(rows)
    assert said.startswith(
        "**Back-propagation grows far less with k** by the closed form, from k = 1 to 100: 3.0 times (1.00 to 3.00 "
        "ms), unrolled 40.0 times (1.00 to 40.00 ms)."
    )
    assert '"yes" is at most 2 times as long with the largest k' in said
    assert '"partly" more than that but less than 50 % of the factor' in said
    assert "makes the iterations either way: 100.0 times (0.40 to 40.00 ms) by the closed form" in said
    assert "the share of the iterations in such a step is not measured here" in said
    assert "forward, which makes the iterations: 100.0 times" in seen(rows).because
    assert "cannot be told" in computation_section.grown(solver_rows({1: 0.0, 100: 1.0}, STEEP))


def test_the_table_has_the_backward_as_the_difference_of_its_neighbours() -> None:
    rows = solver_rows({1: 0.25, 100: 1.5}, STEEP)
    shown = computation_section.rendered({"rows": rows}).splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in (shown[0], *shown[2:])]
    place = cells[0].index("backward alone, ms")
    assert [line[place] for line in cells[1:4]] == ["2.00", "0.25", "1.50"]
    assert computation_section.headlines({"rows": rows})[0].ours == "0.2 to 1.5; 1.0 to 40.0"


def test_the_iterations_are_as_exact_from_some_k_on() -> None:
    rows = solver_rows({1: 1.0, 10: 1.0, 100: 1.0}, STEEP)
    assert computation_section.as_exact(rows).startswith("From k = 10 on")
    assert computation_section.as_exact(solver_rows({1: 1.0}, {1: 1.0})) == ""


def test_the_committed_times_do_not_deny_what_the_paper_claims(project: Path) -> None:
    record = read_result(project / "results" / "computation.json")
    rows = record["value"]["rows"]
    assert computation.EXPERIMENT.verdict is not None
    assert computation.EXPERIMENT.verdict(record).holds in ("yes", "partly")
    assert growth(rows, "closed form").last == backward(
        next(r for r in rows if (r["way"], r["k"]) == ("closed form", 100))
    )
    # The promise is about the backward, and what it is not about is said.
    assert "back-propagation" in computation.EXPERIMENT.promise
    assert "training step" in computation.EXPERIMENT.not_attempted
