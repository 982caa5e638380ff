"""`gspool evaluate RUN`: which classes of which data are measured, and what is refused before any work."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import pytest

from gspool import cli
from gspool.training import evaluate_run, fit
from gspool.training.config import DataConfig
from training.tiny_run import draw_pictures, tiny


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return fit(tiny(max_steps=1, evaluate_every=1), tmp_path_factory.mktemp("trained") / "run").folder


@pytest.fixture
def run(trained, tmp_path):
    return shutil.copytree(trained, tmp_path / "run")


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    return draw_pictures(tmp_path_factory.mktemp("drawn") / "pictures", classes=10, images=3, side=16)


def figures(run, *words) -> dict:
    """Evaluate by the command, and read the figures it wrote."""
    path = run / "figures.json"
    options = ["--device", "cpu", "--progress", "false", "--json", str(path)]
    assert cli.main(["evaluate", str(run), *options, *map(str, words)]) == 0
    found = json.loads(path.read_text())
    for pair in found["confused"]:  # the same pictures may lie elsewhere
        del pair["query"], pair["found"]
    return found


def test_results_by_class_and_a_threshold_can_be_acted_on(run, pictures, capsys):
    found = figures(run, "--data", pictures, "--calibrate", "0.5")
    assert len(found["by_class"]) == 10
    assert sum(each["map@r"] for each in found["by_class"]) / 10 == pytest.approx(found["map@r"])
    assert found["intervals"]["p@1"][0] <= found["p@1"] <= found["intervals"]["p@1"][1]
    kept = json.loads((run / "model" / "threshold.json").read_text())
    assert (kept["split"], kept["wanted_precision"]) == ("all", 0.5)
    again = figures(run, "--data", pictures)
    assert again["threshold"] == {**found["threshold"], "wanted_precision": None}
    printed = capsys.readouterr().out
    assert ("no similarity reaches" in printed) is (kept["precision"] < 0.5)
    assert "only 10 classes were tested" in printed
    assert str(pictures) in printed  # an example of a confused pair


def test_flat_weights_are_told_with_the_remedy(tmp_path, capsys):
    config = tiny(max_steps=1, evaluate_every=1)
    config.model.pooling_options["epsilon"] = 1e-3
    fit(config, tmp_path)
    assert "epsilon" in (tmp_path / "log.txt").read_text()
    assert cli.main(["evaluate", str(tmp_path), "--progress", "false"]) == 0
    assert "pooling_options.epsilon" in capsys.readouterr().err


def test_other_data_goes_by_a_folder_a_list_a_name_or_a_file(run, pictures, capsys):
    by_options = figures(run, "--data.name", "folder", "--data.root", pictures)
    # All ten classes of three images. The run's own options, images_per_class of glyphs, do not apply to a folder.
    assert (by_options["classes"], by_options["queries"], by_options["gallery"]) == (10, 30, 30)
    assert figures(run, "--data", pictures) == by_options
    assert figures(run, f"--data={pictures}", "--data.options.seed", "0") == by_options
    rows = [f"{file},{file.parent.name}" for file in sorted(pictures.rglob("*.png"))]
    (run / "list.csv").write_text("\n".join(["path,label", *rows]))
    assert figures(run, "--data", run / "list.csv")["queries"] == 30
    (run / "data.yaml").write_text(f"name: folder\nroot: {pictures}\n")
    assert figures(run, "--data", run / "data.yaml") == by_options
    assert figures(run, "--data", "glyphs") == figures(run)
    printed = capsys.readouterr().out
    assert "all: 10 classes, 30 queries, gallery of 30" in printed
    assert "test: 100 classes, 200 queries, gallery of 200" in printed


def test_a_share_of_other_data_is_measured_when_it_is_asked_for(run, pictures):
    assert figures(run, "--data", pictures, "--split", "test")["classes"] == 2
    assert figures(run, "--data", pictures, "--split", "train")["classes"] == 6
    assert figures(run, "--data", pictures, "--data.options.fractions", "[0.5,0,0.5]")["classes"] == 5


def test_data_with_splits_of_its_own_is_measured_on_its_test_split(run, pictures, tmp_path):
    for number, source in enumerate(sorted(pictures.iterdir())):
        split = "train" if number < 7 else "test"
        shutil.copytree(source, tmp_path / "divided" / split / source.name)
        if split == "test":
            shutil.copytree(source, tmp_path / "only_test" / "test" / source.name)
    divided = figures(run, "--data", tmp_path / "divided")
    assert (divided["split"], divided["classes"], divided["queries"]) == ("test", 3, 9)
    only_test = figures(run, "--data", tmp_path / "only_test")
    assert {**only_test, "split": "test"} == divided


def test_the_data_that_a_run_was_trained_on_keeps_its_test_classes(pictures, tmp_path):
    config = tiny(max_steps=1, evaluate_every=1)
    options = {"fractions": [0.5, 0.2, 0.3]}
    config.data = DataConfig(name="folder", root=str(pictures), options=options, classes_per_batch=2)
    run = fit(config, tmp_path / "run").folder
    own = figures(run)
    assert own["classes"] == 3
    assert figures(run, "--data", pictures) == own
    moved = shutil.copytree(pictures, tmp_path / "moved")
    assert figures(run, "--data.root", moved) == own
    assert figures(run, "--data", moved)["classes"] == 10


def test_a_classifier_knows_its_classes_by_name_wherever_they_are(tmp_path):
    config = tiny(max_steps=40, evaluate_every=40, log_every=40, monitor="accuracy")
    config.model.pooling, config.model.pooling_options = "gap", {}
    config.data = DataConfig("folder", str(tmp_path / "whole"), classes_per_batch=4, images_per_class=2)
    config.loss.name, config.model.dim, config.optimiser.lr = "cross_entropy", None, 1e-2
    drawn = sorted(draw_pictures(tmp_path / "drawn", classes=4, images=6, side=16).glob("*/*.png"))
    for place, picture in enumerate(drawn):
        for root in ("whole", f"half{place // 12}"):
            folder = tmp_path / root / ("train", "val", "test")[place % 3] / picture.parent.name
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copy(picture, folder)
    result = fit(config, tmp_path / "run")
    names = [f"class0{label}" for label in range(4)]
    assert json.loads((tmp_path / "run" / "classes.json").read_text()) == names

    def accuracy(root):
        found = evaluate_run(tmp_path / "run", "test", replace(config.data, root=str(tmp_path / root)))
        return found.accuracy, found.warning

    parts = [accuracy("half0"), accuracy("half1")]
    assert sum(value for value, _ in parts) / 2 == pytest.approx(result.metrics["accuracy"])
    assert {warning for _, warning in parts} == {None}
    (tmp_path / "half1" / "test" / names[3]).rename(tmp_path / "half1" / "test" / "newt")
    value, warning = accuracy("half1")
    assert value is None
    assert "does not know 1 classes of the data (newt)" in warning
    # Runs from before the names were written.
    (tmp_path / "run" / "classes.json").unlink()
    value, warning = accuracy("whole")
    assert value is None
    assert "classes.json; write the names" in warning


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
