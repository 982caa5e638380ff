"""Finished runs are found again, whatever happened to the last line of the file or wherever they were made."""

from __future__ import annotations

from pathlib import Path

import pytest

from gspool.executor.run_store import RunStore
from gspool.provenance import write_result


def test_another_reader_finds_a_run_whatever_the_order_of_the_keys(tmp_path: Path) -> None:
    store = RunStore(tmp_path / "folder" / "runs.jsonl")
    assert store.get({"seed": 0}) is None
    store.put({"seed": 0, "pooling": "gap"}, {"map@r": 0.5})
    store.put({"seed": 1, "pooling": "gap"}, {"map@r": 0.25})
    again = RunStore(store.path)
    assert again.get({"pooling": "gap", "seed": 1}) == {"map@r": 0.25}
    assert again.get({"pooling": "gap"}) is None
    assert [run.found["map@r"] for run in again.runs([{"seed": 1, "pooling": "gap"}, {"seed": 7}])] == [0.25]
    assert len(again.runs()) == 2
    assert {"commit", "device", "versions", "date"} <= set(again.runs()[0].origin)


def test_the_last_run_of_a_kind_counts(tmp_path: Path) -> None:
    store = RunStore(tmp_path / "a.jsonl")
    store.put({"seed": 0}, {"x": 1})
    store.put({"seed": 0}, {"x": 2})
    assert RunStore(store.path).get({"seed": 0}) == {"x": 2}


@pytest.mark.parametrize("kept", [1, 10, 40])
def test_a_line_that_a_crash_cut_short_is_done_again_and_harms_no_other(tmp_path: Path, kept: int) -> None:
    path = tmp_path / "a.jsonl"
    store = RunStore(path)
    store.put({"seed": 0}, {"x": 0})
    whole = path.read_bytes()
    store.put({"seed": 1}, {"x": 1})
    path.write_bytes(path.read_bytes()[: len(whole) + kept])
    cut = RunStore(path)
    assert (cut.get({"seed": 0}), cut.get({"seed": 1})) == ({"x": 0}, None)
    cut.put({"seed": 2}, {"x": 2})
    with pytest.warns(UserWarning, match=r"line 2 of .* is damaged"):
        again = RunStore(path)
    assert [again.get({"seed": seed}) for seed in range(3)] == [{"x": 0}, None, {"x": 2}]


@pytest.mark.parametrize("line", ["nonsense", "[1, 2]", '{"asked": {"seed": 0}}', "\\xff"])
def test_a_damaged_line_is_told_and_its_run_done_again(tmp_path: Path, line: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(f'{line}\n{{"asked": {{"seed": 1}}, "found": {{"x": 1}}}}\n')
    with pytest.warns(UserWarning, match=r"line 1 of .* is damaged"):
        assert RunStore(path).get({"seed": 1}) == {"x": 1}


def test_numbers_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    store = RunStore(tmp_path / "a.jsonl")
    with pytest.raises(ValueError):
        store.put({"seed": 0}, {"x": float("nan")})
    assert store.get({"seed": 0}) is None


def test_runs_of_a_published_result_count_as_finished(tmp_path: Path) -> None:
    published = tmp_path / "mu.json"
    runs = [{"asked": {"variant": "gap", "seed": 0}, "found": {"x": 1}}]
    write_result(published, {"runs": runs}, command="gspool reproduce mu", seeds=[0])
    store = RunStore(tmp_path / "a.jsonl", published)
    assert store.get({"variant": "gap", "seed": 0}) == {"x": 1}
    assert store.runs()[0].origin["device"]
    store.put({"variant": "gap", "seed": 0}, {"x": 2})
    assert RunStore(store.path, published).get({"variant": "gap", "seed": 0}) == {"x": 2}


@pytest.mark.parametrize("kind", ["missing", "damaged", "quick", "another kind"])
def test_a_result_that_holds_no_runs_adds_none(tmp_path: Path, kind: str) -> None:
    published = tmp_path / "mu.json"
    value = [1] if kind == "another kind" else {"runs": [{"asked": {"seed": 0}, "found": {"x": 1}}]}
    if kind != "missing":
        command = f"gspool reproduce mu{' --quick' if kind == 'quick' else ''}"
        write_result(published, value, command=command, seeds=[])
    if kind == "damaged":
        published.write_text("{")
    assert RunStore(tmp_path / "a.jsonl", published).runs() == []
