"""Seeds of a result: those measured before are kept, and the ones that would be lost are named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gspool.experiments.experiment import Experiment, RunOptions
from gspool.experiments.runs import SeedRuns, run_seeds
from gspool.provenance import read_result, write_result

VARIANTS = ("gap", "gsp")


def jobs(seed: int) -> dict[str, dict[str, Any]]:
    return {name: {"pooling": name, "seed": seed} for name in VARIANTS}


def make_worker() -> Any:
    return lambda asked, seconds: {"square": asked["seed"] ** 2}


def run(folder: Path, *seeds: int, **options: Any) -> SeedRuns:
    study = Experiment("study", "", "", "", ("study",), lambda _: None)
    chosen = RunOptions(seeds=seeds, results=folder, work=folder, **options)
    found = run_seeds(study, chosen, (0, 1, 2), jobs, make_worker)
    found.write({})
    return found


def test_seeds_of_earlier_runs_are_kept(tmp_path: Path) -> None:
    run(tmp_path, 3)
    found = run(tmp_path, 1)
    assert found.seeds == (1, 3)
    assert found.found["gsp", 3] == {"square": 9}
    assert [each.asked["seed"] for each in found.runs] == [1, 1, 3, 3]


def test_runs_inside_the_result_count_as_finished(tmp_path: Path) -> None:
    run(tmp_path, 3)
    (tmp_path / "study" / "runs.jsonl").unlink()
    assert run(tmp_path, 1).seeds == (1, 3)


def test_a_result_whose_runs_are_not_at_hand_is_not_overwritten(tmp_path: Path) -> None:
    write_result(tmp_path / "study.json", {"rows": []}, command="gspool reproduce study", seeds=[0, 5])
    with pytest.raises(ValueError, match=r"would drop 5.*--seeds 0,1,5"):
        run(tmp_path, 0, 1)


def test_the_tiny_version_has_one_seed(tmp_path: Path) -> None:
    assert run(tmp_path, quick=True).seeds == (0,)
    assert read_result(tmp_path / "study.json")["command"] == "gspool reproduce study --device cpu --quick"


def test_time_that_is_over_before_a_seed_is_complete_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="give more --seconds"):
        run(tmp_path, seconds=1e-9)
    assert not (tmp_path / "study.json").exists()
