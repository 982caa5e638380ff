"""`gspool explain` as a person calls it."""

from __future__ import annotations

import json

import pytest
import torch
from PIL import Image

from gspool import Embedder
from gspool.data.image_source import SelectedImages
from gspool.search import explain, explain_command
from gspool.search.commands import run
from gspool.search.explanation.page import explanation_page


@pytest.fixture
def inside(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_an_image_becomes_a_picture(model_folder, pictures, inside, capsys) -> None:
    assert run("explain", [str(model_folder), str(pictures / "ant/0.png")]) == 0
    told = capsys.readouterr().out
    assert "0.png: the weights are nearly uniform (entropy 0.99" in told
    assert "wrote   explanation.png" in told
    with Image.open(inside / "explanation.png") as picture:
        assert picture.format == "PNG"
        assert picture.width > 3.5 * 2.6 * 110  # four panels: image, weights, prototypes, attributes


def test_two_images_tell_what_they_share(model_folder, pictures, inside, capsys, monkeypatch) -> None:
    images = [str(pictures / "ant/0.png"), str(pictures / "ant/0.png")]
    monkeypatch.setenv("HOME", str(inside))
    assert run("explain", [str(model_folder), *images, "--out", "~/deep/why.html", "--json", "~/why.json"]) == 0
    assert "overlap 100.0% of the prototypes, cosine 1.000" in capsys.readouterr().out
    figures = json.loads((inside / "why.json").read_text())
    assert figures["shared"]["overlap"] == pytest.approx(1.0)
    assert len(figures["images"]) == 2
    rows, columns = figures["images"][0]["grid"]
    weights = figures["images"][0]["weights"]
    assert (len(weights), len(weights[0])) == (rows, columns)
    assert sum(map(sum, weights)) == pytest.approx(1.0, abs=1e-5)
    assert sum(figures["images"][0]["attributes"]) == pytest.approx(1.0, abs=1e-5)
    assert {owner for row in figures["images"][0]["owners"] for owner in row} <= set(range(8))
    page = (inside / "deep/why.html").read_text()
    assert "What they share" in page
    assert "http" not in page
    # Three pictures of each image, and what is shared in it.
    assert page.count("data:image/png;base64,") == 8
    assert "times the average weight" in page


def test_the_grid_is_drawn_on_request(model_folder, pictures, inside) -> None:
    for name, options in (("smooth", []), ("grid", ["--grid"])):
        for kind in ("png", "html"):
            arguments = [str(pictures / "ant/0.png"), "--out", f"{name}.{kind}", *options]
            assert run("explain", [str(model_folder), *arguments]) == 0
    for kind in ("png", "html"):
        assert (inside / f"smooth.{kind}").read_bytes() != (inside / f"grid.{kind}").read_bytes()


def test_figures_for_the_terminal_come_alone(model_folder, pictures, inside, capsys) -> None:
    assert run("explain", [str(model_folder), str(pictures / "ant"), "--json", "-"]) == 0
    assert len(json.loads(capsys.readouterr().out)["images"]) == 5
    assert not (inside / "explanation.png").exists()


def test_a_model_without_prototypes_shows_weights_alone(pictures, inside, capsys) -> None:
    Embedder("small_cnn", pooling="gap", dim=8).save_pretrained("model")
    assert run("explain", ["model", str(pictures / "ant/0.png"), str(pictures / "bee/0.png")]) == 0
    told = capsys.readouterr().out
    assert "this model has no prototypes, only weights" in told
    assert "shared" not in told
    assert (inside / "explanation.png").is_file()


def test_a_model_in_its_warm_start_says_what_it_waits_for(pictures, inside, capsys) -> None:
    model = Embedder("small_cnn", pooling="gsp", dim=8, pooling_options={"prototypes": 4, "warm_start": 1024})
    model.train()(torch.zeros(3, 3, 64, 64, dtype=torch.uint8))
    model.save_pretrained("model")
    assert run("explain", ["model", str(pictures / "ant/0.png"), str(pictures / "bee/0.png")]) == 0
    told = capsys.readouterr().out
    assert told.count("the 4 prototypes of this model are not set yet") == 2
    assert "saw 3 vectors and warm_start needs 1,024" in told
    assert "no prototypes" not in told


def test_prototypes_become_a_page(model_folder, pictures, inside, capsys) -> None:
    (pictures / "ant" / "broken.png").write_bytes(b"no picture")
    arguments = ["--prototypes", str(pictures), "--top", "2", "--progress", "false", "--json", "p.json"]
    assert run("explain", [str(model_folder), *arguments, "--out", "p.html"]) == 0
    assert "8 prototypes, 15 images, 1 could not be read" in capsys.readouterr().out
    assert (inside / "p.html").read_text().count("<img ") == 16
    figures = json.loads((inside / "p.json").read_text())
    assert "broken.png" in figures["broken"][0]
    assert len(figures["prototypes"]) == 8


def test_a_data_set_is_taken_by_its_name(model_folder, inside, capsys, monkeypatch) -> None:
    # Three of its images are enough.
    source = explain_command.image_source
    monkeypatch.setattr(explain_command, "image_source", lambda *place: SelectedImages(source(*place), torch.arange(3)))
    arguments = ["--prototypes", "glyphs", "--split", "validation", "--progress", "false", "--json", "-"]
    assert run("explain", [str(model_folder), *arguments]) == 0
    assert json.loads(capsys.readouterr().out)["prototypes"][0]["regions"][0]["image"].startswith("glyph ")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["no-such.png"], "there is no no-such.png"),
        (["--prototypes", "no-such-folder"], "there is no no-such-folder"),
        (["words.png"], "words.png: the content is not one of JPEG"),
        (["words.png"] * 33, "at most 32 images fit into one picture, got 33"),
    ],
)
def test_what_is_wrong_is_told_in_a_line(model_folder, inside, capsys, arguments: list[str], words: str) -> None:
    (inside / "words.png").write_text("words")
    assert run("explain", [str(model_folder), *arguments]) == 1
    assert words in capsys.readouterr().err


def test_names_are_text_on_the_page(small_model) -> None:
    explanation = explain(small_model, Image.new("RGB", (64, 64), "teal"))
    assert "<script>" not in explanation_page(["<script>alert(1)</script>"], [explanation])
