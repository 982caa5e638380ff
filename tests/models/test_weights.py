from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import torch
from torch import nn

from gspool.models.weights import copy_weights, read_weights


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


class Ran:
    """A pickle that would run code on loading."""

    def __reduce__(self):
        return (Path.touch, (Path(self.path),))

    def __init__(self, path: Path) -> None:
        self.path = str(path)


def test_a_pickle_that_runs_code_is_refused_and_does_not_run(tmp_path: Path) -> None:
    (tmp_path / "evil.pth").write_bytes(pickle.dumps(Ran(tmp_path / "ran"), protocol=2))
    torch.save({"a": Ran(tmp_path / "ran")}, tmp_path / "evil2.pth")
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
