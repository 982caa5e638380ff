"""The table of the main figures: where they come from, and what their deviations are over."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gspool.experiments import registry, report
from gspool.experiments.experiment import Headline
from gspool.experiments.headline_table import DEVIATIONS, LEVELS, headline_table
from gspool.provenance import read_result, write_result
from probe_experiment import register_probe


@pytest.fixture
def result(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    headlines = {"headlines": lambda value: [Headline("x", "0.6", str(value))]}
    register_probe(monkeypatch, run=lambda _: None, render=lambda _: "", **headlines)
    path = tmp_path / "probe.json"
    write_result(path, 0.5, command="gspool reproduce probe", seeds=[])
    return path


@pytest.mark.parametrize(
    ("origin", "shown"),
    [
        ({"commit": "0123456789", "uncommitted_changes": False}, "abacus, commit 0123456 |"),
        ({"commit": "0123456789", "uncommitted_changes": True}, "abacus, commit 0123456 and changes |"),
        ({"commit": None, "uncommitted_changes": None}, "abacus |"),
    ],
)
def test_a_row_says_what_the_caption_says_of_its_commit(result: Path, origin: dict, shown: str) -> None:
    result.write_text(json.dumps({**read_result(result), "device": "abacus", **origin}))
    assert f"| probe | x | 0.6 | 0.5 | {shown}" in headline_table(result.parent)
    told = report.commits_told(read_result(result))
    assert told in report.caption("probe", read_result(result))
    assert shown == f"abacus{', ' if told else ''}{told} |"


def test_the_table_says_what_its_deviations_are_over(result: Path) -> None:
    *_, empty, note, _, _ = headline_table(result.parent).split("\n")
    assert empty == ""
    assert note == DEVIATIONS
    assert "in the rows of benchmark and components over all combinations of one repeat a fold" in note


def test_the_table_says_that_levels_do_not_compare_and_where_differences_stand(result: Path, project: Path) -> None:
    assert headline_table(result.parent).endswith(f"\n\n{LEVELS}")
    assert "rows of an experiment share folds or seeds" in LEVELS
    assert LEVELS.endswith("95 % intervals, and verdicts, stand in the sections of docs/reproduction.md.")
    assert (project / "docs" / "reproduction.md").is_file()


def test_a_benchmark_deviates_over_combinations_and_mu_over_seeds(project: Path) -> None:
    """The note is about the figures that are shown: they are computed anew from the single runs."""
    from statistics import pstdev, stdev

    def shown(name: str, what: str) -> str:
        (found,) = (each.ours for each in headlines(name) if each.what == what)
        return found

    def headlines(name: str) -> list[Headline]:
        experiment = registry.find(name)
        assert experiment.headlines is not None
        return experiment.headlines(read_result(project / "results" / f"{experiment.files[0]}.json")["value"])

    value = read_result(project / "results" / "mu.json")["value"]
    reached = [100 * run["found"]["validation"] for run in value["runs"] if run["asked"]["arm"] == "c2 gsp mu 0.1"]
    assert len(reached) > 1
    assert shown("mu", "validation MAP@R, cub, c2, mu 0.1").endswith(f"± {stdev(reached):.2f}")
    value = read_result(project / "results" / "components.json")["value"]
    folds: dict[int, list[float]] = {}
    for run in value["runs"]:
        if run["asked"]["arm"] == "c2 gap":
            folds.setdefault(run["asked"]["fold"], []).append(100 * run["found"]["metrics"]["map@r"])
    # The variance of a mean of one repeat a fold, over all choices of it, is that of the folds divided by their number.
    spread = sum(pstdev(repeats) ** 2 for repeats in folds.values()) ** 0.5 / len(folds)
    assert shown("components", "MAP@R 128D, cub, c2, neither").endswith(f"± {spread:.2f}")
