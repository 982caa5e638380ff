"""Intervals by a second computation, tables as Markdown shows them, and the summary of all experiments."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from scipy import stats

from gspool.evaluation.statistics import (
    deviation,
    interval,
    over_folds,
    paired_difference,
    seed_difference,
    significance,
    with_interval,
)
from gspool.experiments.experiment import Headline
from gspool.experiments.tables import commits, headline_table, markdown_table, plus_minus, provenance
from gspool.provenance import write_result
from probe_experiment import register_probe


@pytest.mark.parametrize("count", [2, 3, 12, 40])
def test_the_interval_is_that_of_a_paired_t_test(count: int) -> None:
    draw = random.Random(count)
    values = [draw.gauss(0.3, 1.0) for _ in range(count)]
    expected = stats.ttest_1samp(values, 0.0).confidence_interval(0.95)
    assert interval(seed_difference(values)) == pytest.approx((expected.low, expected.high))
    p_value = stats.ttest_1samp(values, 0.0).pvalue
    assert (significance(seed_difference(values)) != "not significant") == (p_value < 0.05)


def test_folds_weigh_the_same_whatever_their_number_of_pairs() -> None:
    found = paired_difference([[1.0, 2.0, 3.0], [8.0]])._asdict()
    assert (found["mean"], found["fold_mean"]) == (3.5, 5.0)
    assert interval(over_folds(found)) == pytest.approx(interval(seed_difference([2.0, 8.0])))


@pytest.mark.parametrize(
    ("values", "sign"),
    [((1.0, 1.1), "ahead"), ((-1.0, -1.1), "behind"), ((-1.0, 1.1), "not significant"), ((1.0,), "not significant")],
)
def test_signs_are_told_only_where_the_interval_excludes_zero(values: tuple[float, ...], sign: str) -> None:
    assert significance(seed_difference(values)) == sign


def test_one_run_has_no_deviation() -> None:
    assert (deviation([3.0]), plus_minus(3.0, None), with_interval(None)) == (0.0, "3.00", "")


def test_text_stands_left_and_numbers_right() -> None:
    shown = markdown_table([{"layer": "gap", "loss": "c2", "x": 1.0, "note": None}], ".1f").splitlines()
    assert shown == ["| layer | loss | x | note |", "|---|---|---:|---:|", "| gap | c2 | 1.0 |  |"]
    with pytest.raises(ValueError, match="same keys"):
        markdown_table([{"a": 1}, {"b": 1}])
    with pytest.raises(ValueError, match="at least one row"):
        markdown_table([])


@pytest.mark.parametrize(
    ("origin", "shown"),
    [
        ({"commit": "0123456789", "uncommitted_changes": False}, "abacus, commit 0123456 |"),
        ({"commit": "0123456789", "uncommitted_changes": True}, "abacus, commit 0123456 and changes |"),
        ({"commit": None, "uncommitted_changes": None}, "abacus |"),
    ],
)
def test_the_summary_says_where_a_figure_comes_from_or_that_there_is_none(
    origin: dict, shown: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    register_probe(monkeypatch, headlines=lambda value: [Headline("x", "0.6", str(value))])
    assert "| probe | nothing much |  | not run |  |" in headline_table(tmp_path)
    path = tmp_path / "probe.json"
    record = write_result(path, 0.5, command="gspool reproduce probe", seeds=[])
    record |= {"device": "abacus", **origin, "note": "by hand"}
    path.write_text(json.dumps(record))
    assert f"| probe | x | 0.6 | 0.5 | {shown}" in headline_table(tmp_path)
    written = provenance("probe", record)
    assert commits(record) in written
    assert written.endswith(". by hand*")
