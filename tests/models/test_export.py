from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from timm.layers import Conv2dSame
from timm.layers import padding as padding_of_timm

from gspool.functional.kernels import dispatch
from gspool.models.export import (
    every_call,
    export_program,
    padded_by_integers,
    refuse_foreign_operators,
    same_padding,
    save_program,
)
from models.exported_models import Patches, pictures, small


def test_a_graph_takes_batches_and_sizes_that_it_was_not_traced_with() -> None:
    # A model that asks for Triton is exported where there is none.
    exported = export_program(small("gsp", pooling_options={"backend": "triton"}))
    model = small("gsp")
    assert exported.size is None
    assert list(exported.description["outputs"]) == ["embedding", "weights", "attributes"]
    graph = exported.program.module()
    for batch, height, width in ((1, 32, 32), (3, 48, 33), (7, 19, 80)):
        images = pictures(batch, height, width)
        with torch.no_grad():
            embedding, weights, attributes = graph(images)
            expected = model.embed(images)
        torch.testing.assert_close(embedding, expected.embedding, atol=1e-6, rtol=0)
        torch.testing.assert_close(weights.flatten(1), expected.weights, atol=1e-6, rtol=0)
        torch.testing.assert_close(attributes, expected.attributes, atol=1e-6, rtol=0)
        assert weights.shape == (batch, *expected.grid)


def test_an_archive_carries_its_description_and_runs_without_the_model(tmp_path: Path) -> None:
    model = small("gap").train()
    path = tmp_path / "deep" / "model.pt2"
    exported = export_program(model, ["embedding"])
    assert model.training
    model.eval()
    save_program(exported, path)
    told = {"gspool.json": ""}
    graph = torch.export.load(path, extra_files=told).module()
    with torch.no_grad():
        torch.testing.assert_close(graph(pictures(3, 40, 36))[0], model(pictures(3, 40, 36)))
    about = json.loads(told["gspool.json"])
    assert about["model"]["pooling"] == "gap"
    assert about["input"]["type"] == "uint8"
    assert [entry.name for entry in path.parent.iterdir()] == ["model.pt2"]
    with pytest.raises(ValueError, match=r"call it model\.pt2"):
        save_program(exported, tmp_path / "model.pth")


def test_fractions_and_normalised_pixels_go_in_as_such() -> None:
    model = small("gap")
    graph = export_program(model, ["embedding"], input="float32").program.module()
    with torch.no_grad():
        torch.testing.assert_close(graph(pictures(2, 32, 32) / 255)[0], model(pictures(2, 32, 32)))
    bare = small("gap", normalise=False)
    about = export_program(bare, ["embedding"]).description
    assert about["input"]["type"] == "float32"
    assert "normalised by you" in about["input"]["values"]
    with pytest.raises(ValueError, match="use input='float32'"):
        export_program(bare, input="uint8")


class OneSize(Patches):
    """Takes its own size and no other, as a ViT with fixed positions does."""

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        if tuple(pixels.shape[2:]) != self.pixels.crop:
            raise ValueError("made for images of one size")
        return super().forward(pixels)


def test_a_backbone_of_one_size_is_exported_for_that_size() -> None:
    model = small("gap", OneSize())
    exported = export_program(model, ["embedding"])
    assert exported.size == (32, 32)
    assert exported.description["input"]["size"] == [32, 32]
    with torch.no_grad():
        torch.testing.assert_close(exported.program.module()(pictures(5, 32, 32))[0], model(pictures(5, 32, 32)))


class Square(Patches):
    """Pools before the pooling, to a grid that it fixes when it is traced: free in Python, bound in a graph."""

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        rows = int(pixels.shape[2]) // 4
        return self.convolution(pixels)[:, :, : float(rows).__int__()]


def test_a_graph_that_is_bound_to_its_size_is_refused_with_the_way_out() -> None:
    model = small("gap", Square())
    with pytest.raises(ValueError, match=r"bound to the one it was traced with.*--size 32 32"):
        export_program(model, ["embedding"])
    assert export_program(model, ["embedding"], size=(32, 32)).size == (32, 32)


class Resampled(Patches):
    """Adds positions that fit its own size, and resamples them for every other, as transformers do."""

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        features, positions = self.convolution(pixels), torch.arange(64.0).view(1, 1, 8, 8)
        if features.shape[2:] != positions.shape[2:]:
            positions = torch.nn.functional.interpolate(positions, features.shape[2:], mode="bilinear")
        return features + positions


def test_a_graph_that_skips_the_branch_for_its_own_size_is_refused() -> None:
    with pytest.raises(ValueError, match=r"bound to the one it was traced with.*--size 32 32"):
        export_program(small("gap", Resampled()), ["embedding"])


def test_a_transformer_that_resamples_its_positions_is_exported_for_a_size() -> None:
    options = {"img_size": 32, "dynamic_img_size": True, "layers": [1, -1]}
    model = small("gap", "timm/test_vit", backbone_options=options)
    graph = export_program(model, ["embedding"], size=(32, 32)).program.module()
    with torch.no_grad():
        torch.testing.assert_close(graph(pictures(3, 32, 32))[0], model(pictures(3, 32, 32)))


class SamePadding(Patches):
    """Pads as TensorFlow does, by as much as the size of the image asks for."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = torch.nn.Sequential(Conv2dSame(3, 3, 3, stride=2), Conv2dSame(3, 3, 5, stride=2))

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        return super().forward(self.stem(pixels))


def test_sizes_of_a_graph_with_same_padding_are_computed_in_integers() -> None:
    model = small("gap", SamePadding())
    exported = export_program(model, ["embedding"])
    assert exported.size is None
    names = " ".join(str(node.target) for node in every_call(exported.program))
    assert not [word for word in ("truediv", "ceil", "float", "max") if word in names], names
    with torch.no_grad():
        for height, width in ((32, 33), (35, 61), (34, 50)):
            images = pictures(2, height, width)
            torch.testing.assert_close(exported.program.module()(images)[0], model(images))


def test_same_padding_is_that_of_timm_which_is_put_back() -> None:
    timms = padding_of_timm.get_same_padding
    for size in range(1, 40):
        for kernel, stride, dilation in ((1, 1, 1), (1, 3, 1), (2, 2, 1), (3, 1, 1), (3, 2, 2), (5, 2, 1), (2, 5, 1)):
            assert same_padding(size, kernel, stride, dilation) == timms(size, kernel, stride, dilation)
    with padded_by_integers():
        assert padding_of_timm.get_same_padding is same_padding
    assert padding_of_timm.get_same_padding is timms


def calls_of_kernels(program: torch.export.ExportedProgram) -> list[str]:
    names = [str(node.target) for node in every_call(program)]
    return [name for name in names if "gspool" in name or "triton" in name]


def test_triton_kernels_never_enter_a_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    launched = []

    def launch(*inputs: object) -> None:
        launched.append(inputs)
        raise RuntimeError("launched")

    # A device where the kernels could run, and a model that asks for them by name.
    monkeypatch.setattr(dispatch, "_obstacle", lambda *_: None)
    monkeypatch.setattr(dispatch, "pool", launch)
    model = small("gsp", pooling_options={"prototypes": 3, "backend": "triton"})
    with pytest.raises(RuntimeError, match="launched"), torch.no_grad():
        model(pictures(1, 32, 32))
    launched.clear()
    assert calls_of_kernels(export_program(model, ["embedding"]).program) == []
    # The layer by itself, without our help, keeps them out as well.
    alone = torch.export.export(model.head, (torch.zeros(2, 16, 4, 4),), strict=False)
    assert calls_of_kernels(alone) == []
    assert launched == []
    assert model.head.layer.backend == "triton"


def test_an_operator_of_our_own_in_a_graph_is_refused() -> None:
    class WithKernel(torch.nn.Module):
        def forward(self, tokens: torch.Tensor, prototypes: torch.Tensor) -> torch.Tensor:
            settings = (None, 0.5, None, 1.0, None, False, "tf32x3", False)
            return torch.ops.gspool.pool_forward(tokens, prototypes, *settings)[0]

    program = torch.export.export(WithKernel(), (torch.zeros(2, 5, 16), torch.zeros(4, 16)), strict=False)
    with pytest.raises(ValueError, match=r"holds gspool\.pool_forward.*no operator of PyTorch"):
        refuse_foreign_operators(program)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"outputs": ["embeding"]}, "there is no output 'embeding'; the outputs are embedding"),
        ({"outputs": ["attributes"]}, "gap has no attributes; this model has embedding, weights"),
        ({"outputs": ["embedding", "embedding"]}, "name each output once"),
        ({"outputs": []}, "name each output once"),
        ({"input": "int8"}, "input must be one of uint8, float32"),
    ],
)
def test_wrong_wishes_are_refused_in_words(arguments: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        export_program(small("gap"), **arguments)
