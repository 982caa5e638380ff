"""Finished trainings are found again, whatever happened to the file's last line."""

from __future__ import annotations

from pathlib import Path

import pytest

from gspool.experiments.ledger import Ledger


def test_what_was_put_is_found_by_another_reader_whatever_the_order_of_the_keys(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "folder" / "trainings.jsonl")
    assert ledger.get({"seed": 0}) is None
    ledger.put({"seed": 0, "pooling": "gap"}, {"map@r": 0.5})
    ledger.put({"seed": 1, "pooling": "gap"}, {"map@r": 0.25})
    again = Ledger(ledger.path)
    assert again.get({"pooling": "gap", "seed": 1}) == {"map@r": 0.25}
    assert again.get({"pooling": "gap"}) is None


def test_the_last_answer_counts(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "a.jsonl")
    ledger.put({"seed": 0}, 1)
    ledger.put({"seed": 0}, 2)
    assert Ledger(ledger.path).get({"seed": 0}) == 2


@pytest.mark.parametrize("kept", [1, 10, 40])
def test_a_line_that_a_crash_cut_short_is_done_again_and_harms_no_other(tmp_path: Path, kept: int) -> None:
    path = tmp_path / "a.jsonl"
    ledger = Ledger(path)
    ledger.put({"seed": 0}, {"map@r": 0.5})
    whole = path.read_bytes()
    ledger.put({"seed": 1}, {"map@r": 0.25})
    path.write_bytes(path.read_bytes()[: len(whole) + kept])
    cut = Ledger(path)
    assert cut.get({"seed": 0}) == {"map@r": 0.5}
    assert cut.get({"seed": 1}) is None
    cut.put({"seed": 2}, 3)
    again = Ledger(path)
    assert again.get({"seed": 2}) == 3
    assert again.get({"seed": 0}) == {"map@r": 0.5}
    assert again.get({"seed": 1}) is None


@pytest.mark.parametrize("line", ["nonsense", "[1, 2]", '{"asked": {"seed": 0}}'])
def test_damage_in_the_middle_is_told_with_its_line(tmp_path: Path, line: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(f'{{"asked": {{"seed": 0}}, "found": 1}}\n{line}\n')
    with pytest.raises(ValueError, match=r"line 2 of .* is damaged"):
        Ledger(path)


def test_numbers_that_are_none_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError):
        Ledger(tmp_path / "a.jsonl").put({"seed": 0}, float("nan"))


def test_entries_remember_where_they_come_from(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    old, new = Ledger(path), {"commit": "new"}
    old.put({"seed": 0}, 1)
    ledger = Ledger(path, new)
    ledger.put({"seed": 1}, 2)
    for each in (ledger, Ledger(path)):
        assert each.origins({"commit": "unknown"}) == [{"commit": "unknown"}, new]
        assert each.origins({}, [{"seed": 1}]) == [new]
