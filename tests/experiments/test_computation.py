"""The computation study: what it measures, and what its table and headlines show."""

from __future__ import annotations

from pathlib import Path

import pytest

from gspool.experiments import commands, computation
from gspool.provenance import read_result


def test_the_published_times_show_a_backward_pass_that_does_not_grow(project: Path) -> None:
    rows = read_result(project / "results" / "computation.json")["value"]["rows"]
    time = {(row["way"], row["k"]): computation.backward(row) for row in rows}
    assert time["closed form", 100] < 2 * time["closed form", 1]
    assert time["unrolled", 100] > 20 * time["unrolled", 1]


def test_a_tiny_run_measures_every_solver_and_finds_it_correct(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert commands.run("reproduce", ["computation", "--quick", "--device", "cpu", "--results", "out"]) == 0
    record = read_result(Path("out/computation.json"))
    rows = record["value"]["rows"]
    assert [(row["way"], row["k"]) for row in rows] == [
        ("exact solver", None),
        *((way, k) for k in (1, 5) for way in ("closed form", "unrolled")),
    ]
    assert rows[0]["relative_error"] < 1e-5
    # More iterations come nearer to the solution, by either gradient alike.
    assert rows[1]["relative_error"] > rows[3]["relative_error"] == pytest.approx(rows[4]["relative_error"], rel=1e-2)
    table = computation.times(record).splitlines()
    assert len(table) == 2 + len(rows)
    assert Path("out/images/computation.png").is_file()
