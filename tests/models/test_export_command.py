from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from huggingface_hub import ModelCard
from PIL import Image

from gspool.models import Embedder, pretrained
from gspool.models.export_command import run, show_comparisons
from gspool.models.onnx_export import Comparison
from gspool.models.pretrained import GENERATED

CONSUMER = Path(__file__).resolve().parents[2] / "examples" / "onnx_consumer.py"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make the folder of a finished run, and export it in every way at once."""
    folder = tmp_path_factory.mktemp("runs") / "first"
    torch.manual_seed(0)
    pixels = {"size": [40, 56], "resize": 60, "interpolation": "bicubic"}
    model = Embedder("small_cnn", pooling="gap", dim=8, backbone_options={"pixels": pixels})
    model.save_pretrained(folder / "model")
    (folder / "config.yaml").write_text("data:\n  name: glyphs\n")
    (folder / "result.json").write_text(json.dumps({"metrics": {"map@r": 0.5}}))
    return folder


@pytest.fixture(scope="module")
def shared(finished: Path) -> Path:
    folder = finished.parent / "share"
    words = [str(finished), "--torch", str(folder.parent / "birds.pt2"), "--folder", str(folder), "--licence", "mit"]
    assert run("export", [*words, "--check"]) == 0
    return folder


def test_a_run_becomes_a_folder_to_share_and_an_archive(shared: Path) -> None:
    names = sorted(path.name for path in shared.iterdir())
    assert names == ["README.md", "config.json", "model.onnx", "model.safetensors"]
    card = ModelCard.load(shared / "README.md")
    assert card.data.license == "mit"
    assert [(each.dataset_name, each.metric_value) for each in card.data.eval_results] == [("glyphs", 0.5)]
    assert "model.onnx" in card.text
    graph = torch.export.load(shared.parent / "birds.pt2").module()
    images = torch.zeros(3, 3, 50, 44, dtype=torch.uint8)
    with torch.no_grad():
        torch.testing.assert_close(graph(images)[0], Embedder.from_pretrained(shared)(images))


def test_a_program_without_torch_gives_the_same_likeness(shared: Path, tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    paths = []
    for number, size in enumerate([(90, 61), (61, 90), (200, 200), (64, 71)]):
        paths.append(tmp_path / f"{number}.png")
        Image.fromarray(draw.integers(256, size=(*size, 3), dtype=np.uint8)).save(paths[-1])
    code = "import sys; sys.modules['torch'] = None; sys.modules['gspool'] = None; import runpy; "
    code += f"sys.argv = sys.argv[1:]; runpy.run_path({str(CONSUMER)!r}, run_name='__main__')"
    command = [sys.executable, "-c", code, str(CONSUMER), str(shared / "model.onnx"), *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    shown = np.array([float(word) for word in done.stdout.replace("[", " ").replace("]", " ").split()]).reshape(4, 4)
    model = Embedder.from_pretrained(shared)
    with torch.no_grad():
        vectors = model(torch.stack([model.pixels.transform()(Image.open(path)) for path in paths]))
    np.testing.assert_allclose(shown, (vectors @ vectors.T).numpy(), atol=2e-5)
    assert shown.min() < 0.9999


def test_the_check_shows_the_differences_and_a_licence_is_asked_for(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (finished / "model" / "README.md").read_text()
    (finished / "model" / "README.md").write_text(page.replace(GENERATED, "My own words."))
    words = [str(finished), "--folder", str(tmp_path), "--outputs", "embedding", "--size", "40", "56", "--check"]
    assert run("export", words) == 0
    (finished / "model" / "README.md").write_text(page)
    shown = capsys.readouterr().out
    assert "any batch, images of 40 x 56; outputs embedding" in shown
    assert "5 x 3 x 40 x 56" in shown
    assert "equal to 1e-05" in shown
    assert "no licence is stated" in shown
    assert "My own words." in (tmp_path / "README.md").read_text()


def test_a_model_of_the_hub_keeps_its_card_and_all_files_are_of_one_translation(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(pretrained, "snapshot_download", lambda *_, **__: shared)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert run("export", ["me/birds", "--onnx", "~/birds.onnx", "--folder", "~/again", "--check"]) == 0
    shown = capsys.readouterr().out
    assert "no licence is stated" not in shown
    assert shown.count("largest difference between") == 1
    assert (tmp_path / "birds.onnx").read_bytes() == (tmp_path / "again" / "model.onnx").read_bytes()
    card = ModelCard.load(tmp_path / "again" / "README.md").data
    assert (card.license, [each.metric_value for each in card.eval_results]) == ("mit", [0.5])


@pytest.mark.parametrize("off", [2e-5, float("nan")])
def test_a_file_that_differs_is_not_called_equal(off: float) -> None:
    show_comparisons([Comparison((1, 3, 8, 8), {"embedding": 0.0, "weights": 9e-6})])
    with pytest.raises(ValueError, match="differs from PyTorch by more than 1e-05"):
        show_comparisons([Comparison((1, 3, 8, 8), {"embedding": 0.0, "weights": off})])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "--onnx FILE, --torch FILE"),
        (["--onnx", "birds.pb"], "--onnx writes a .onnx file, got birds.pb"),
        (["--torch", "birds.pth"], "--torch writes a .pt2 file"),
        (["--torch", "birds.pt2", "--outputs", "heat"], "--outputs are embedding, weights, attributes, got heat"),
        (["--torch", "birds.pt2", "--size", "0", "5"], "--size must be at least 1, got 0"),
        (["--torch", "birds.pt2", "--check"], "--check compares an ONNX file"),
        (["--onnx", "birds.onnx", "--licence", "mit"], "--licence is for the card"),
        (["--onnx", "birds.onnx", "--data", "birds"], "--data is for the card"),
        (["--folder", "share", "--private"], "--private is about a repository"),
    ],
)
def test_what_cannot_be_meant_ends_in_status_2(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("export", ["no/such/model", *words]) == 2
    assert message in capsys.readouterr().err


def test_an_output_that_the_model_does_not_have_ends_in_status_1(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("export", [str(finished), "--torch", str(tmp_path / "birds.pt2"), "--outputs", "attributes"]) == 1
    assert "gap has no attributes" in capsys.readouterr().err


def test_a_missing_model_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("export", ["/nowhere/at/all", "--torch", str(tmp_path / "a.pt2")]) == 1
    assert "there is no folder /nowhere/at/all" in capsys.readouterr().err
