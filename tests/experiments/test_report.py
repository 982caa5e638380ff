"""Numbers in documents are those of the results, and stay so."""

from __future__ import annotations

from pathlib import Path

import pytest

from gspool.experiments import report
from gspool.provenance import write_result


@pytest.fixture
def root(tmp_path: Path) -> Path:
    value = {"worst": 1.25e-13, "steps": 5, "rows": [{"mu": 0.3, "name": "a"}, {"mu": 1.0, "name": "b"}]}
    value["speed"] = [{"n": 7, "ms": {"gsp": 1.25, "the_floor": 1.0}}, {"n": 49, "ms": {"gsp": 2.0, "the_floor": 1.5}}]
    write_result(tmp_path / "results" / "solver.json", value, command="python solver.py", seeds=[0])
    (tmp_path / "docs").mkdir()
    return tmp_path


def fill(root: Path, text: str) -> str:
    return report.filled(text, root / "results")


def test_a_number_is_put_into_its_sentence(root: Path) -> None:
    text = "off by <!-- results:solver value.worst .1e -->9<!-- /results --> at most"
    new = fill(root, text)
    assert new == "off by <!-- results:solver value.worst .1e -->1.2e-13<!-- /results --> at most"
    assert fill(root, new) == new


def test_each_marker_gets_its_own_value(root: Path) -> None:
    marker = "<!-- results:solver {} --><!-- /results -->"
    new = fill(root, f"{marker.format('value.steps')}, {marker.format('value.rows.1.name')}")
    assert new.index("value.steps -->5<") < new.index("value.rows.1.name -->b<")


def test_rows_become_a_table_with_its_origin(root: Path) -> None:
    lines = fill(root, "<!-- results:solver value.rows .2f -->\nold\n<!-- /results -->").splitlines()
    assert lines[1:5] == ["| mu | name |", "|---:|---:|", "| 0.30 | a |", "| 1.00 | b |"]
    assert lines[6].startswith("*results/solver.json: `python solver.py`, ")
    assert "old" not in lines


def test_columns_are_chosen_by_their_paths(root: Path) -> None:
    lines = fill(root, "<!-- results:solver value.speed .1f ms.the_floor,n --><!-- /results -->").splitlines()
    assert lines[1:5] == ["| the floor | n |", "|---:|---:|", "| 1.0 | 7 |", "| 1.5 | 49 |"]


def test_markers_in_code_are_only_shown(root: Path) -> None:
    text = "```\n<!-- results:nothing value -->\n```\n<!-- results:solver value.steps --><!-- /results -->"
    assert fill(root, text).startswith("```\n<!-- results:nothing value -->\n```\n<!-- results:solver value.steps -->5")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<!-- results:solver value.steps -->5", "1 results markers are opened and 0"),
        ("5<!-- /results -->", "0 results markers are opened"),
        (
            "<!-- results:solver value --> <!-- results:solver value.steps -->5<!-- /results -->",
            "2 results markers are opened and 1",
        ),
        ("<!-- results:lost value -->5<!-- /results -->", r"there is no result lost\.json"),
        ("<!-- results:solver value.best -->5<!-- /results -->", "worst, steps, rows, speed"),
        (
            "<!-- results:solver value.rows g mu,gone -->5<!-- /results -->",
            "'gone': in the place of 'gone' there are mu",
        ),
        ("<!-- results:solver value.steps.a -->5<!-- /results -->", "a single value"),
        ("<!-- results:solver value.worst .1q -->5<!-- /results -->", "'.1q' is not a number format"),
        ("<!-- results:solver a b c d -->5<!-- /results -->", "a marker reads results:FILE"),
    ],
)
def test_a_marker_that_cannot_be_filled_is_refused(root: Path, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fill(root, text)


@pytest.mark.parametrize("rows", [[], [1, 2], [{"a": 1}, {"b": 2}]])
def test_only_equal_rows_are_a_table(rows: list) -> None:
    with pytest.raises(ValueError, match="same keys"):
        report.table(rows, "g")


def test_checking_changes_nothing_and_filling_mends(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = root / "docs" / "page.md"
    page.write_text("<!-- results:solver value.steps -->4<!-- /results -->")
    with pytest.raises(SystemExit, match=r"out of date: docs/page\.md"):
        report.main(["--check", "--root", str(root)])
    assert ">4<" in page.read_text()
    report.main(["--root", str(root)])
    assert ">5<" in page.read_text()
    assert "filled anew: docs/page.md" in capsys.readouterr().out
    report.main(["--check", "--root", str(root)])
    assert "up to date" in capsys.readouterr().out


def test_a_document_that_cannot_be_filled_is_named(root: Path) -> None:
    (root / "docs" / "page.md").write_text("<!-- results:lost --><!-- /results -->")
    with pytest.raises(ValueError, match=r"docs/page\.md cannot be filled: there is no result lost\.json"):
        report.main(["--root", str(root)])


def test_the_documents_of_the_project_are_up_to_date(project: Path) -> None:
    assert project / "README.md" in report.documents(project)
    report.main(["--check", "--root", str(project)])


def test_what_was_noted_about_a_result_stands_under_its_table():
    record = {"command": "run it", "device": "abacus", "versions": {"torch": "2.11"}, "date": "today"}
    assert report.caption("sums", record) == "*results/sums.json: `run it`, abacus, torch 2.11, today*"
    assert report.caption("sums", {**record, "note": "Half of it."}).endswith("today. Half of it.*")
