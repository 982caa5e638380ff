"""Figures: what is drawn, that labels do not overlap, and that the same figure is the same file."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from gspool.evaluation.statistics import seed_difference
from gspool.experiments import plots
from gspool.experiments.experiment import FromFile, Record
from gspool.provenance import write_result
from probe_experiment import register_probe

LINES = [
    plots.Line("gsp, 3 pairs", seed_difference([0.1, 0.2, 0.4]), 0.5),
    plots.Line("delf, 1 pair", seed_difference([-0.3])),
]


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Figures in place of files."""
    figures: list[Any] = []
    monkeypatch.setattr(plots, "save", lambda figure, path: figures.append(figure))
    return figures


def test_the_same_forest_is_the_same_file(tmp_path: Path) -> None:
    for name in ("a.png", "b.png"):
        plots.forest({"c2": LINES, "pnca": LINES[:1]}, tmp_path / name, xlabel="points")
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()


def test_few_pairs_are_open_marks_without_an_interval(kept: list[Any]) -> None:
    plots.forest({"c2": LINES}, Path("a.png"), xlabel="points")
    (axes,) = kept[0].get_axes()
    marks = [line for line in axes.get_lines() if line.get_marker() == "o"]
    assert [line.get_markerfacecolor() for line in marks] == ["C0", "white"]
    assert [len(each.get_children()) for each in axes.containers] == [4, 1]
    assert [text.get_text() for text in kept[0].legends[0].get_texts()] == ["ours", "paper"]


def test_tick_labels_of_a_long_forest_do_not_overlap(kept: list[Any]) -> None:
    plots.forest({"c2": LINES * 12}, Path("a.png"), xlabel="points")
    kept[0].canvas.draw()
    boxes = [label.get_window_extent() for label in kept[0].get_axes()[0].get_yticklabels()]
    heights = sorted((box.y0, box.y1) for box in boxes)
    assert all(lower[1] <= upper[0] + 0.5 for lower, upper in pairwise(heights))


def test_every_label_stands_once_in_the_legend() -> None:
    figure, grid = plots.subplots(1, 2)
    for axes in grid[0]:
        plots.curve(axes, [1, 2], [0.1, 0.2], [0.05, None], label="gsp")
    plots.legend_below(figure)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["gsp"]
    plots.bars(grid[0][0], ["a", "b"], [1.0, 2.0], [0.1, None], ["C0", "C1"], [1.5, None])
    assert [text.get_text() for text in grid[0][0].get_yticklabels()] == ["a", "b"]


def test_figures_are_drawn_from_the_files_that_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    drawn: list[tuple[object, str]] = []

    def note(record: Record, path: Path) -> None:
        drawn.append((record["value"], path.name))
        path.touch()

    experiment = register_probe(
        monkeypatch, files=("probe", "more"), plots={"probe": note, "probe_more": FromFile("more", note)}
    )
    write_result(tmp_path / "probe.json", 1, command="gspool reproduce probe", seeds=[])
    assert plots.draw_plots(experiment, tmp_path, tmp_path) == [tmp_path / "probe.png"]
    assert drawn == [(1, "probe.png")]
    monkeypatch.setattr(plots, "find_spec", lambda name: None)
    assert plots.draw_plots(experiment, tmp_path, tmp_path) == []
    assert "matplotlib is not installed" in capsys.readouterr().out
