"""Finished runs are found again, whatever happened to the last line of the file or wherever they were made."""

from __future__ import annotations

from pathlib import Path

import pytest

from gspool.executor.run_store import RunStore
from gspool.provenance import write_result


def test_another_reader_finds_the_last_run_of_a_kind_whatever_the_order_of_its_keys(tmp_path: Path) -> None:
    store = RunStore(tmp_path / "folder" / "runs.jsonl")
    store.put({"seed": 0, "pooling": "gap"}, {"map@r": 0.5})
    for value in (0.75, 0.25):
        store.put({"seed": 1, "pooling": "gap"}, {"map@r": value})
    with pytest.raises(ValueError):
        store.put({"seed": 2, "pooling": "gap"}, {"map@r": float("nan")})
    again = RunStore(store.path)
    assert again.get({"pooling": "gap", "seed": 1}) == {"map@r": 0.25}
    assert again.get({"pooling": "gap"}) is None
    assert [run.found["map@r"] for run in again.runs([{"seed": 1, "pooling": "gap"}, {"seed": 7}])] == [0.25]
    assert len(again.runs()) == len(store.runs()) == 2
    assert {"commit", "device", "versions", "date"} <= set(again.runs()[0].origin)


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


@pytest.mark.parametrize("kind", ["published", "missing", "damaged", "quick", "another kind"])
def test_runs_of_a_published_result_count_as_finished(tmp_path: Path, kind: str) -> None:
    published, asked = tmp_path / "mu.json", {"variant": "gap", "seed": 0}
    value = [1] if kind == "another kind" else {"runs": [{"asked": asked, "found": {"x": 1}}]}
    if kind != "missing":
        write_result(published, value, command=f"gspool reproduce mu{' --quick' * (kind == 'quick')}", seeds=[0])
    if kind == "damaged":
        published.write_text("{")
    store = RunStore(tmp_path / "a.jsonl", published)
    assert [run.found for run in store.runs()] == ([{"x": 1}] if kind == "published" else [])
    assert all(run.origin["device"] for run in store.runs())
    store.put(asked, {"x": 2})
    assert RunStore(store.path, published).get(asked) == {"x": 2}


def test_a_forgotten_run_is_done_again_and_then_counts(tmp_path: Path) -> None:
    store = RunStore(tmp_path / "a.jsonl")
    for seed in (0, 1):
        store.put({"seed": seed}, {"steps": 400 + seed})
    store.forget(lambda run: run.found["steps"] == 400)
    assert (store.get({"seed": 0}), store.get({"seed": 1})) == (None, {"steps": 401})
    store.put({"seed": 0}, {"steps": 1200})
    assert RunStore(store.path).get({"seed": 0}) == {"steps": 1200}
