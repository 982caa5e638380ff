"""Numbers in documents are those of the results, and stay so."""

from __future__ import annotations

from pathlib import Path

import pytest

from gspool.experiments import commands, markers
from gspool.experiments.experiment import FromFile
from gspool.provenance import write_result
from probe_experiment import register_probe


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    value = {"worst": 1.25e-13, "steps": 5, "rows": [{"mu": 0.3, "name": "a"}, {"mu": 1.0, "name": "b"}]}
    value["speed"] = [{"n": 7, "ms": {"gsp": 1.25, "the_floor": 1.0}}, {"n": 49, "ms": {"gsp": 2.0, "the_floor": 1.5}}]
    write_result(tmp_path / "results" / "solver.json", value, command="python solver.py", seeds=[0])
    write_result(tmp_path / "results" / "probe.json", 0.5, command="gspool reproduce probe", seeds=[0])
    register_probe(
        monkeypatch,
        tables={
            "gain": lambda record: f"{record['value']:+.1f}",
            "rows": lambda record: "| x |\n|---|\n| 1 |",
            "other": FromFile("solver", lambda record: f"{record['value']['steps']}"),
        },
    )
    (tmp_path / "docs").mkdir()
    return tmp_path


def fill(root: Path, text: str) -> str:
    return markers.filled(text, root / "results")


def test_a_number_is_put_into_its_sentence(root: Path) -> None:
    text = "off by <!-- results:solver value.worst .1e -->9<!-- /results --> at most"
    new = fill(root, text)
    assert new == "off by <!-- results:solver value.worst .1e -->1.2e-13<!-- /results --> at most"
    assert fill(root, new) == new


def test_each_marker_gets_its_own_value(root: Path) -> None:
    marker = "<!-- results:solver {} --><!-- /results -->"
    new = fill(root, f"{marker.format('value.steps')}, {marker.format('value.rows.1.name')}")
    assert new.index("value.steps -->5<") < new.index("value.rows.1.name -->b<")


def test_rows_become_a_table_with_its_provenance(root: Path) -> None:
    lines = fill(root, "<!-- results:solver value.rows .2f -->\nold\n<!-- /results -->").splitlines()
    assert lines[1:5] == ["| mu | name |", "|---:|---:|", "| 0.30 | a |", "| 1.00 | b |"]
    assert lines[6].startswith("*results/solver.json: `python solver.py`, ")
    assert "old" not in lines


def test_columns_are_chosen_by_their_paths(root: Path) -> None:
    lines = fill(root, "<!-- results:solver value.speed .1f ms.the_floor,n --><!-- /results -->").splitlines()
    assert lines[1:5] == ["| the floor | n |", "|---:|---:|", "| 1.0 | 7 |", "| 1.5 | 49 |"]


def test_tables_of_experiments_are_blocks_and_single_lines_stay_in_their_sentence(root: Path) -> None:
    new = fill(root, "by <!-- table: probe.gain -->?<!-- end --> in <!-- table: probe.other --><!-- end --> steps")
    assert new == "by <!-- table: probe.gain -->+0.5<!-- end --> in <!-- table: probe.other -->5<!-- end --> steps"
    block = fill(root, "<!-- table: probe.rows -->\nold\n<!-- end -->")
    assert block == "<!-- table: probe.rows -->\n\n| x |\n|---|\n| 1 |\n\n<!-- end -->"
    assert fill(root, block) == block
    assert (
        fill(root, "<!-- table: probe.rows :: 1 :: x --><!-- end -->")
        == "<!-- table: probe.rows :: 1 :: x -->1<!-- end -->"
    )
    assert "`gspool reproduce probe`" in fill(root, "<!-- table: probe.provenance --><!-- end -->")
    assert "| probe | nothing much |" in fill(root, "<!-- table: summary --><!-- end -->")


def test_markers_in_code_are_only_shown(root: Path) -> None:
    text = "```\n<!-- results:nothing value -->\n```\n<!-- results:solver value.steps --><!-- /results -->"
    assert fill(root, text).startswith("```\n<!-- results:nothing value -->\n```\n<!-- results:solver value.steps -->5")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<!-- results:solver value.steps -->5", "1 markers .* are opened and 0"),
        ("5<!-- /results -->", "0 markers .* are opened"),
        ("<!-- results:solver value --> <!-- results:solver value.steps -->5<!-- /results -->", "2 markers .* and 1"),
        ("<!-- results:lost value -->5<!-- /results -->", r"lost\.json"),
        ("<!-- results:solver value.best -->5<!-- /results -->", "worst, steps, rows, speed"),
        ("<!-- results:solver value.rows g mu,gone -->5<!-- /results -->", "'gone'.* mu"),
        ("<!-- results:solver value.steps.a -->5<!-- /results -->", "a single value"),
        ("<!-- results:solver value.worst .1q -->5<!-- /results -->", r"'\.1q' is not a number format"),
        ("<!-- results:solver a b c d -->5<!-- /results -->", "a marker reads results:FILE"),
        ("<!-- table: probe.gone -->5<!-- end -->", "no table 'gone'; it has gain, rows, other, provenance"),
        ("<!-- table: probe.rows :: 7 :: x -->5<!-- end -->", "0 rows begin with '7'; rows: 1; columns: x"),
        ("<!-- table: probe.rows :: 1 :: y -->5<!-- end -->", "columns: x"),
        ("<!-- table: probe.gain -->5", "1 markers .* are opened and 0"),
    ],
)
def test_a_marker_that_cannot_be_filled_is_refused(root: Path, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fill(root, text)


def test_the_command_fills_every_document_and_then_finds_them_up_to_date(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    marker = "<!-- results:solver value.steps -->{}<!-- /results -->"
    for name in ("README.md", "docs/page.md"):
        (root / name).write_text(marker.format("?"))
    assert commands.run("report", ["--check", "--project", str(root)]) == 1
    assert "out of date: README.md, docs/page.md; run gspool report" in capsys.readouterr().err
    assert (root / "README.md").read_text() == marker.format("?")
    assert commands.run("report", ["--project", str(root)]) == 0
    assert (root / "docs/page.md").read_text() == marker.format(5)
    assert commands.run("report", ["--check", "--project", str(root)]) == 0


def test_the_command_names_the_document_with_a_wrong_marker(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (root / "README.md").write_text("<!-- results:lost value --><!-- /results -->")
    assert commands.run("report", ["--project", str(root)]) == 1
    assert "README.md cannot be filled" in capsys.readouterr().err


def test_a_folder_without_results_or_with_a_tiny_version_is_refused(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert commands.run("report", ["--project", str(tmp_path / "docs")]) == 1
    assert "there is no folder" in capsys.readouterr().err
    write_result(root / "results" / "probe.json", 1, command="gspool reproduce probe --quick", seeds=[])
    assert commands.run("report", ["--project", str(root)]) == 1
    assert "probe.json" in capsys.readouterr().err


def test_the_documents_of_the_project_are_up_to_date(project: Path) -> None:
    markers.fill_documents(project, check=True)
