"""`gspool evaluate RUN`: other data by its short names, and what is refused before any work."""

from __future__ import annotations

import json

import numpy as np
import pytest
from PIL import Image

from gspool import cli
from gspool.training import fit
from gspool.training.data_words import named_data, other_name
from training.tiny_run import tiny


@pytest.fixture
def run(tmp_path):
    fit(tiny(max_steps=1, evaluate_every=1), tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture
def pictures(tmp_path):
    draws = np.random.default_rng(0)
    for label in range(10):
        folder = tmp_path / "pictures" / f"class {label}"
        folder.mkdir(parents=True)
        for number in range(3):
            Image.fromarray(draws.integers(0, 256, (16, 16, 3), dtype=np.uint8)).save(folder / f"{number}.png")
    return tmp_path / "pictures"


def figures(run, *words) -> dict:
    """Evaluate by the command, and read the figures it wrote."""
    path = run / "figures.json"
    options = ["--device", "cpu", "--progress", "false", "--json", str(path)]
    assert cli.main(["evaluate", str(run), *options, *map(str, words)]) == 0
    return json.loads(path.read_text())


def test_other_data_goes_by_a_folder_a_list_a_name_or_a_file(run, pictures, capsys):
    by_options = figures(run, "--data.name", "folder", "--data.root", pictures)
    # The run's own options, images_per_class of glyphs, must not be asked of a folder.
    assert (by_options["queries"], by_options["gallery"]) == (6, 6)
    assert figures(run, "--data", pictures) == by_options
    assert figures(run, f"--data={pictures}", "--data.options.seed", "0") == by_options
    rows = [f"{file},{file.parent.name}" for file in sorted(pictures.rglob("*.png"))]
    (run / "list.csv").write_text("\n".join(["path,label", *rows]))
    assert figures(run, "--data", run / "list.csv")["queries"] == 6
    (run / "data.yaml").write_text(f"name: folder\nroot: {pictures}\n")
    assert figures(run, "--data", run / "data.yaml") == by_options
    assert figures(run, "--data", "glyphs") == figures(run)
    assert "6 queries, 0 lone ones left out, gallery of 6" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (["--data", "foldr"], 2, "there is no data set 'foldr'; known are glyphs, folder"),
        (["--data.rot", "x"], 2, "did you mean --data.root?"),
        (["--split", "tests"], 2, "'train', 'validation', 'test'"),
        (["--ks", "[0]"], 2, "every k of R@K must be an integer of at least 1, got 0"),
        (["--device", "abacus"], 1, "device 'abacus' cannot be used here"),
        (["--json", "{run}/config.yaml/figures.json"], 1, "choose another with --json"),
        (["--data", "{run}/broken.yaml"], 1, "is not YAML"),
    ],
)
def test_mistakes_are_answered_in_words(run, words, status, message, capsys):
    (run / "broken.yaml").write_text("name: [")
    answer = None
    try:
        answer = cli.main(["evaluate", str(run), "--progress", "false", *(word.format(run=run) for word in words)])
    except SystemExit as end:
        answer = end.code
    assert answer == status
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error


def test_short_names_stand_for_options(tmp_path):
    assert named_data(["run", "--data", "cub", "--ks", "[1]"]) == ["run", "--data.name", "cub", "--ks", "[1]"]
    assert named_data([f"--data={tmp_path}"]) == ["--data.name", "folder", "--data.root", str(tmp_path)]
    assert named_data(["--data", '{"name": "cub"}']) == ["--data", '{"name": "cub"}']
    assert other_name(["--data.name=cub"], "glyphs")
    assert not other_name(["--data.name", "glyphs", "--data.root", "cub"], "glyphs")
