"""A downloaded model may choose an architecture and numbers, and nothing else; a file of weights holds tensors."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import subprocess
import sys
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import load_file, save_file
from timm.models import build_model_with_cfg
from torch import nn

from gspool.models import Embedder, Pixels
from gspool.models.pretrained import TIMM_OPTIONS, Settings, check_settings
from gspool.models.weights import copy_weights, read_weights

MISSING = "a key that is missing"
FUZZ = Path(__file__).with_name("fuzz_config.py")


def saved(folder: Path, **settings: Any) -> Path:
    torch.manual_seed(0)
    Embedder(**{"backbone": "timm/test_resnet", "pooling": "gsp", "dim": 8, **settings}).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("saved"))


@pytest.fixture
def folder(model: Path, tmp_path: Path) -> Path:
    """A copy of one saved model, to be changed."""
    return shutil.copytree(model, tmp_path / "model")


def change(folder: Path, **changes: Any) -> None:
    config = {**json.loads((folder / "config.json").read_text()), **changes}
    kept = {name: value for name, value in config.items() if value != MISSING}
    (folder / "config.json").write_text(json.dumps(kept))


class RunsCode:
    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self):
        return (Path.touch, (Path(self.path),))


@pytest.mark.parametrize(
    "option",
    [
        "checkpoint_path",
        "weights",
        "pretrained",
        "pretrained_cfg",
        "pretrained_cfg_overlay",
        "cache_dir",
        "num_classes",
    ],
)
def test_an_option_that_names_a_file_or_address_is_refused_by_name(option: str, folder: Path, tmp_path: Path) -> None:
    pickled = tmp_path / "evil.pth"
    pickled.write_bytes(pickle.dumps(RunsCode(tmp_path / "ran")))
    value = {"file": str(pickled), "url": pickled.as_uri()} if option.startswith("pretrained_") else str(pickled)
    change(folder, backbone_options={option: value})
    with pytest.raises(ValueError, match=rf"may not set the backbone option '{option}'"):
        Embedder.from_pretrained(folder)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "backbone", ["timm/hf-hub:me/evil", "timm/local-dir:/tmp", "../resnet20", "/etc/passwd", "timm/../x", "a\x1b[2J", 7]
)
def test_a_backbone_is_a_plain_name(backbone: object, folder: Path) -> None:
    change(folder, backbone=backbone)
    with pytest.raises(ValueError, match="backbone") as refused:
        Embedder.from_pretrained(folder)
    assert "\x1b" not in str(refused.value)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"dim": 10**12}, "dim must be an integer from 1 to"),
        ({"dim": True}, "dim must be an integer"),
        ({"dim": 9}, r"of another shape: head\.embed\.weight \(file \(8, 96\), model \(9, 96\)\)"),
        ({"dim": 500_000}, "of another shape"),
        ({"pooling": "gemean"}, r"missing in the file: head\.layer\.|unknown to the model: head\.layer"),
        ({"pooling": MISSING}, "missing pooling; unknown nothing"),
        ({"backbone": "timm/test_resnett"}, "did you mean .*timm/test_resnet"),
        ({"pixels": {"mean": [1, 2]}}, "three in all"),
        ({"pooling_options": {"prototypes": 10**9}}, "'prototypes' must be a finite number of at most"),
        ({"pooling_options": {"prototypes": 10**6}}, "of another shape"),
        ({"pooling_options": {"mu": "/etc/passwd"}}, "plain word that names no file"),
        ({"pooling_options": {"role": {"a": 1}}}, "'role' must be a number, a word"),
        ({"pooling_options": [1]}, "pooling_options must be a dict"),
        ({"pooling": "otp", "pooling_options": {"iterations": 10**5}}, "'iterations' must be .* at most 1,000"),
        ({"pooling": "tfm", "pooling_options": {"layers": 10**5}}, "'layers' must be .* at most 512"),
        ({"pooling": "../gsp"}, "there is no pooling layer"),
        ({"backbone_options": {"layers": [200, 200, 200, 200]}}, "'layers' must be .* at most 512"),
        ({"backbone_options": {"act_layer": "no_such_layer"}}, "cannot be built|does not take"),
        ({"freeze": ["all"]}, "freeze must be one of"),
        ({"normalise": "yes"}, "normalise must be a bool"),
        ({"pixels": {**Pixels().as_dict(), "size": 10**6, "resize": 10**6}}, "must be positive, at most 4096"),
        ({"pixels": {**Pixels().as_dict(), "std": [1e-30, 1, 1]}}, "must be positive"),
        ({"pixels": {**Pixels().as_dict(), "mean": ["a", 0, 0]}}, "must be numbers"),
        ({"weights_sha256": "../x"}, "64 hexadecimal digits"),
        ({"gspool": "\x1b[2J", "extra": 1}, "unknown"),
    ],
)
def test_a_wrong_value_is_refused_in_one_sentence(changes: dict[str, Any], words: str, folder: Path) -> None:
    change(folder, **changes)
    with pytest.raises(ValueError, match=words) as refused:
        Embedder.from_pretrained(folder)
    assert "\n" not in str(refused.value)
    assert "\x1b" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[]", "got list"),
        ('{"dim": 8, "dim": 9}', "'dim' appears twice"),
        ('{"dim": NaN}', "NaN is not a number"),
        ('{"dim": ' + "[" * 100_000, "not readable as JSON"),
        (" " * 2_000_000, "2,000,000 bytes"),
        ('{"dim": ' + "9" * 10_000 + "}", "not readable as JSON"),
    ],
    ids=["no object", "duplicate key", "NaN", "deep nesting", "huge file", "huge number"],
)
def test_a_hostile_json_text_is_refused(text: str, words: str, folder: Path) -> None:
    (folder / "config.json").write_text(text)
    with pytest.raises(ValueError, match=words):
        Embedder.from_pretrained(folder)


def test_a_config_cannot_ask_for_buffers_that_no_file_holds(tmp_path: Path) -> None:
    swin = {"backbone": "timm/swin_tiny_patch4_window7_224", "pooling": "gap"}
    small = {"embed_dim": 12, "depths": [2, 1], "num_heads": [2, 2], "img_size": 64, "window_size": 2}
    folder = saved(tmp_path, **swin, backbone_options=small)
    large = {**small, "img_size": 2048, "window_size": 64}
    with torch.device("meta"):
        model = Embedder(**swin, dim=8, backbone_options=large)
    buffers = sum(buffer.numel() * buffer.element_size() for buffer in model.buffers())
    assert buffers > 3 * 2**30
    # The weights fit, so that only the memory of the buffers is left to refuse.
    save_file(
        {name: torch.zeros(value.shape) for name, value in model.state_dict().items()}, folder / "model.safetensors"
    )
    change(folder, backbone_options=large, pixels=model.pixels.as_dict(), weights_sha256=None)
    with pytest.raises(ValueError, match="GiB, far more than its weights"):
        Embedder.from_pretrained(folder)


def test_weights_that_rotted_are_named(folder: Path) -> None:
    content = bytearray((folder / "model.safetensors").read_bytes())
    content[-3] ^= 1
    (folder / "model.safetensors").write_bytes(content)
    with pytest.raises(ValueError, match=r"model\.safetensors is damaged: its SHA-256"):
        Embedder.from_pretrained(folder)
    change(folder, weights_sha256=MISSING)  # as older models are saved
    assert Embedder.from_pretrained(folder).out_dim == 8


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (torch.full((8,), torch.nan), "NaN or infinite numbers, in backbone"),
        (torch.full((8,), torch.inf), "NaN or infinite numbers, in backbone"),
        (torch.zeros(8, dtype=torch.int64), "of another type: .*file whole, model floating"),
        (torch.zeros(8, dtype=torch.complex64), "of another type|not a readable"),
        (torch.zeros(2, 8), "of another shape"),
    ],
)
def test_weights_of_another_kind_are_refused(value: torch.Tensor, words: str, tmp_path: Path) -> None:
    folder = saved(tmp_path, backbone="small_cnn", backbone_options={"width": 8})
    weights = load_file(folder / "model.safetensors")
    name = next(name for name, tensor in weights.items() if tensor.shape == (8,))
    save_file({**weights, name: value}, folder / "model.safetensors")
    change(folder, weights_sha256=None)
    with pytest.raises(ValueError, match=words):
        Embedder.from_pretrained(folder)


def test_a_user_may_name_a_file_and_the_saved_model_does_not(tmp_path: Path) -> None:
    first = Embedder("timm/test_resnet", pooling="gap", dim=8)
    save_file(first.backbone.network.state_dict(), tmp_path / "private.safetensors")
    options = {"weights": tmp_path / "private.safetensors", "drop_path_rate": 0.1}
    Embedder("timm/test_resnet", pooling="gap", dim=8, backbone_options=options).save_pretrained(tmp_path / "model")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    assert config["backbone_options"] == {"drop_path_rate": 0.1}
    assert "private" not in (tmp_path / "model" / "README.md").read_text()
    (tmp_path / "private.safetensors").unlink()
    assert Embedder.from_pretrained(tmp_path / "model").out_dim == 8


def test_what_timm_does_before_the_architecture_cannot_be_set() -> None:
    own = {name for function in (timm.create_model, build_model_with_cfg) for name in signature(function).parameters}
    assert own & TIMM_OPTIONS <= {"scriptable", "exportable", "no_jit"}
    with pytest.raises(ValueError, match="plain word"):
        check_settings(Settings("timm/x", {"act_layer": "a/b"}, "gap", {}, 8, "none", True, Pixels().as_dict()))


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("absent.pth", None, r"no weights file at .*absent\.pth"),
        ("a.safetensors", b"nonsense" * 10, "not a readable safetensors file"),
        ("list.pth", [torch.zeros(1)], "holds list, expected a dictionary"),
    ],
)
def test_a_file_that_holds_no_weights_is_refused(name: str, content: object, words: str, tmp_path: Path) -> None:
    if isinstance(content, bytes):
        (tmp_path / name).write_bytes(content)
    elif content is not None:
        torch.save(content, tmp_path / name)
    with pytest.raises(ValueError, match=words):
        read_weights(tmp_path / name)


def test_a_pickle_that_runs_code_is_refused_and_does_not_run(tmp_path: Path) -> None:
    (tmp_path / "evil.pth").write_bytes(pickle.dumps(RunsCode(tmp_path / "ran"), protocol=2))
    torch.save({"a": RunsCode(tmp_path / "ran")}, tmp_path / "evil2.pth")
    for name in ("evil.pth", "evil2.pth"):
        with pytest.raises(ValueError, match="nothing else is ever unpickled"):
            read_weights(tmp_path / name)
    assert not (tmp_path / "ran").exists()


def test_half_precision_is_widened_to_the_models_own() -> None:
    layer = nn.Linear(2, 2)
    weights = {"weight": torch.rand(2, 2).half(), "bias": torch.rand(2).half()}
    copy_weights(layer, weights, source="memory")
    assert layer.weight.dtype == torch.float32
    assert torch.equal(layer.weight, weights["weight"].float())


def test_nothing_is_copied_when_something_does_not_fit() -> None:
    layer = nn.Linear(2, 2)
    before = layer.weight.clone()
    with pytest.raises(ValueError, match="missing in the file: bias"):
        copy_weights(layer, {"weight": torch.zeros(2, 2)}, source="memory")
    assert torch.equal(layer.weight, before)


def test_a_buffer_of_another_shape_is_refused() -> None:
    norm = nn.BatchNorm1d(2)
    weights = {**norm.state_dict(), "running_mean": torch.zeros(3)}
    with pytest.raises(ValueError, match="size mismatch for running_mean"):
        copy_weights(norm, weights, source="memory")


def fuzzed(count: int, folder: Path) -> dict[str, Any]:
    command = [sys.executable, str(FUZZ), str(count), "1", str(folder)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "HF_HUB_OFFLINE": "1"}
    )
    assert done.returncode == 0, done.stderr
    outcome: dict[str, Any] = json.loads(done.stdout)
    assert set(outcome["outcomes"]) == {"works", "refused"}, done.stderr
    assert not outcome["reached"]
    assert outcome["memory_growth_mb"] < 500
    return outcome


def test_every_mutated_config_is_a_working_model_or_one_error(tmp_path: Path) -> None:
    fuzzed(100, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_ten_thousand_mutated_configs(tmp_path: Path) -> None:
    assert fuzzed(10_000, tmp_path)["outcomes"]["works"] > 500
