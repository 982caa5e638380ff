from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

from gspool import pooling
from gspool.models.export import KEY
from gspool.models.onnx_export import (
    EQUAL,
    check_installed,
    compare_with_onnx,
    export_onnx,
    open_session,
    read_description,
)
from models.exported_models import pictures, small

OPTIONS = {"hidden": 8}
SHAPES = [(1, 32, 32), (3, 48, 32), (5, 33, 71)]
BACKBONES = {
    "small_cnn": {"channel_order": "BGR", "range": "0-255"},
    "timm/test_resnet": {},
}


# GSP is slow to translate: what joins two layers is tested with others.
@pytest.mark.parametrize("name", [name for name in pooling.list() if name not in ("gmp+gsp", "gemean+gsp")])
def test_onnx_runtime_equals_pytorch_for_every_pooling_layer(name: str, tmp_path: Path) -> None:
    # Every iteration is a part of the graph, and slow to translate.
    model = small(name, pooling_options={"iterations": 2} if name == "otp" else {})
    written = export_onnx(model, tmp_path / "model.onnx")
    assert written.size is None
    with torch.no_grad():
        out = model.embed(pictures(1, 32, 32))
    has = {"embedding": out.embedding, "weights": out.weights, "attributes": out.attributes}
    compared = compare_with_onnx(model, written.path, SHAPES)
    assert [each.shape for each in compared] == [(batch, 3, height, width) for batch, height, width in SHAPES]
    for each in compared:
        assert set(each.differences) == {output for output, value in has.items() if value is not None}
        assert each.largest <= EQUAL


@pytest.mark.parametrize("backbone", BACKBONES)
def test_onnx_runtime_equals_pytorch_for_the_backbones(backbone: str, tmp_path: Path) -> None:
    # Small images: an export runs the model at its own size and at twice that.
    pixels = {"size": 64, "resize": 64, **BACKBONES[backbone]}
    model = small("gap", backbone, backbone_options={"pixels": pixels})
    assert export_onnx(model, tmp_path / "model.onnx", ["embedding", "weights"]).size is None
    for each in compare_with_onnx(model, tmp_path / "model.onnx", [(1, 64, 64), (3, 48, 80)]):
        assert each.largest <= EQUAL


def test_a_vision_transformer_is_exported_for_one_size(tmp_path: Path) -> None:
    model = small("gap", "timm/test_vit", backbone_options={"img_size": 32})
    written = export_onnx(model, tmp_path / "vit.onnx", ["embedding"], size=(32, 32))
    assert written.size == (32, 32)
    for each in compare_with_onnx(model, written.path):
        assert each.largest <= EQUAL


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("onnx") / "model.onnx"
    export_onnx(small("delf", pooling_options=OPTIONS), path, ["weights", "embedding"])
    return path


def test_a_file_is_valid_names_its_axes_and_holds_standard_operators_only(exported: Path) -> None:
    model = onnx.load(exported)
    onnx.checker.check_model(model, full_check=True)
    axes = {
        value.name: [axis.dim_param or axis.dim_value for axis in value.type.tensor_type.shape.dim]
        for value in (*model.graph.input, *model.graph.output)
    }
    assert axes["images"] == ["batch", 3, "height", "width"]
    assert axes["embedding"] == ["batch", 16]
    assert axes["weights"][0] == "batch"
    assert list(axes) == ["images", "weights", "embedding"]
    assert {node.domain for node in model.graph.node} <= {"", "pkg.onnxscript.torch_lib"}
    assert {each.domain for each in model.opset_import} <= {"", "pkg.onnxscript.torch_lib"}
    assert model.producer_name == "gspool"
    assert [entry.name for entry in exported.parent.iterdir()] == ["model.onnx"]


def test_a_file_tells_how_to_feed_it(exported: Path) -> None:
    told = json.loads(open_session(exported).get_modelmeta().custom_metadata_map[KEY])
    assert told["input"] == {
        "name": "images",
        "type": "uint8",
        "axes": ["batch", "3", "height", "width"],
        "values": "RGB bytes, 0 to 255; the model normalises",
        "resize": 32,
        "interpolation": "bilinear",
        "crop": [32, 32],
        "size": None,
    }
    assert list(told["outputs"]) == ["weights", "embedding"]
    assert told["model"]["pooling_options"] == OPTIONS
    assert told["normalisation"]["mean"] == [0.485, 0.456, 0.406]


def test_vectors_of_onnx_are_those_of_a_second_computation(exported: Path) -> None:
    model = small("delf", pooling_options=OPTIONS).double()
    images = pictures(4, 36, 44)
    weights, embedding = open_session(exported).run(None, {"images": images.numpy()})
    features = model.feature_map(images).detach().flatten(2).transpose(1, 2).numpy()
    tokens = features @ model.head.embed.weight.detach().numpy().T
    pooled = (weights.reshape(4, -1, 1) * tokens).sum(axis=1)
    np.testing.assert_allclose(embedding, pooled / np.linalg.norm(pooled, axis=1, keepdims=True), atol=1e-5)
    np.testing.assert_allclose(weights.sum(axis=(1, 2)), 1.0, atol=1e-5)


def test_the_check_would_notice_another_model(exported: Path) -> None:
    other = small("delf", pooling_options=OPTIONS)
    with torch.no_grad():
        other.head.embed.weight.mul_(torch.linspace(0.5, 1.5, 16)[:, None])
    assert compare_with_onnx(other, exported, [(1, 32, 32)])[0].largest > EQUAL


def test_wrong_files_are_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"name it model\.onnx"):
        export_onnx(small("gap"), tmp_path / "model.pb")
    with pytest.raises(ValueError, match="there is no file"):
        open_session(tmp_path / "absent.onnx")

    class Foreign:
        def get_modelmeta(self) -> Foreign:
            return self

        custom_metadata_map = {"author": "someone"}  # noqa: RUF012

    with pytest.raises(ValueError, match=r"no metadata 'gspool' \(it has author\)"):
        read_description(Foreign())


@pytest.mark.parametrize("library", ["onnx", "onnxscript", "onnxruntime"])
def test_missing_libraries_are_named(library: str, exported: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ImportError, match=rf"ONNX needs {library}.*gspool\[export\]"):
        open_session(exported) if library == "onnxruntime" else check_installed()
