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


@pytest.mark.parametrize(
    ("marker", "shown"),
    [
        ("results:solver value.worst .1e", "1.2e-13"),
        ("results:solver value.steps", "5"),
        ("results:solver value.rows.1.name", "b"),
        ("table: probe.gain", "+0.5"),
        ("table: probe.other", "5"),
        ("table: probe.rows", "\n\n| x |\n|---|\n| 1 |\n\n"),
        ("table: probe.rows :: 1 :: x", "1"),
    ],
)
def test_a_number_stays_in_its_sentence_and_a_table_is_a_block(root: Path, marker: str, shown: str) -> None:
    end = "<!-- end -->" if marker.startswith("table") else "<!-- /results -->"
    new = fill(root, f"off by <!-- {marker} -->9{end}, and <!-- {marker} -->\nold\n{end} at most")
    assert new == f"off by <!-- {marker} -->{shown}{end}, and <!-- {marker} -->{shown}{end} at most"
    assert fill(root, new) == new


def test_rows_become_a_table_with_its_provenance(root: Path) -> None:
    lines = fill(root, "<!-- results:solver value.rows .2f -->\nold\n<!-- /results -->").splitlines()
    assert lines[1:5] == ["| mu | name |", "|---:|---:|", "| 0.30 | a |", "| 1.00 | b |"]
    assert lines[6].startswith("*results/solver.json: `python solver.py`, ")
    assert "old" not in lines
    # Columns are chosen by their paths.
    lines = fill(root, "<!-- results:solver value.speed .1f ms.the_floor,n --><!-- /results -->").splitlines()
    assert lines[1:5] == ["| the floor | n |", "|---:|---:|", "| 1.0 | 7 |", "| 1.5 | 49 |"]
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


def test_what_cannot_be_filled_is_named(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (root / "README.md").write_text("<!-- results:lost value --><!-- /results -->")
    assert commands.run("report", ["--project", str(root)]) == 1
    assert "README.md cannot be filled" in capsys.readouterr().err
    assert commands.run("report", ["--project", str(root / "docs")]) == 1
    assert "there is no folder" in capsys.readouterr().err
    write_result(root / "results" / "probe.json", 1, command="gspool reproduce probe --quick", seeds=[])
    assert commands.run("report", ["--project", str(root)]) == 1
    assert "probe.json" in capsys.readouterr().err


def test_the_documents_of_the_project_are_up_to_date(project: Path) -> None:
    markers.fill_documents(project, check=True)
