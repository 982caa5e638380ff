"""Compare ONNX Runtime with PyTorch on batches and sizes that the export was not traced with."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from gspool.models.export import export_mode
from gspool.models.export_graph import KEY, ExportGraph

if TYPE_CHECKING:
    from gspool.models.embedder import Embedder

# Largest difference of any number of any output that still counts as equal.
EQUAL = 1e-5


class Comparison(NamedTuple):
    """The largest difference of each output, for one shape of images [B, 3, H, W]."""

    shape: tuple[int, int, int, int]
    differences: dict[str, float]

    @property
    def largest(self) -> float:
        """The largest of them; NaN if any of them is."""
        values = list(self.differences.values())
        return float("nan") if any(value != value for value in values) else max(values)


def compare_with_onnx(
    model: Embedder, path: str | Path, shapes: Sequence[tuple[int, int, int]] | None = None
) -> list[Comparison]:
    """Run random images through the model and through ONNX Runtime on the CPU.

    Args:
        model: the model that was exported.
        path: the ONNX file.
        shapes: (batch, height, width) of each comparison; by default a few around the model's own size.

    Raises:
        ValueError: if the file was not written by `export_onnx`.
        ImportError: if onnxruntime is not installed.
    """
    session = open_session(path)
    about = read_description(session)
    compared = []
    with export_mode(model):
        graph = ExportGraph(model, list(about["outputs"]), about["input"]["type"])
        for seed, (batch, height, width) in enumerate(shapes or default_shapes(model, about["input"]["size"])):
            images = graph.example(batch, (height, width), seed)
            ours = graph(images)
            theirs = session.run(list(about["outputs"]), {about["input"]["name"]: images.cpu().numpy()})
            differences: dict[str, float] = {
                name: (mine.cpu().double() - torch.from_numpy(other).double()).abs().max().item()
                for name, mine, other in zip(graph.outputs, ours, theirs, strict=True)
            }
            compared.append(Comparison((batch, 3, height, width), differences))
    return compared


def default_shapes(model: Embedder, size: Sequence[int] | None) -> list[tuple[int, int, int]]:
    """Choose batches of 1, 2 and 5, and other sizes than the traced one where the graph takes any."""
    height, width = size or model.pixels.crop
    if size is not None:
        return [(1, height, width), (2, height, width), (5, height, width)]
    return [(1, height, width), (2, 2 * height, width), (5, height, 2 * width)]


def open_session(path: str | Path) -> Any:
    """Open an ONNX file on the CPU.

    Raises:
        ValueError: if there is no such file.
        ImportError: if onnxruntime is not installed.
    """
    if not Path(path).is_file():
        raise ValueError(f"there is no file {path}; write it with gspool export MODEL --onnx {path}")
    try:
        import onnxruntime
    except ModuleNotFoundError as error:
        raise ImportError("running ONNX needs onnxruntime: pip install 'gspool[export]'", name=error.name) from error
    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])


def read_description(session: Any) -> dict[str, Any]:
    """Read the description of an ONNX file.

    Raises:
        ValueError: if it has none that gspool wrote.
    """
    written = session.get_modelmeta().custom_metadata_map
    if KEY not in written:
        raise ValueError(
            f"this ONNX file has no metadata {KEY!r} (it has {', '.join(written) or 'none'}); "
            "write it with gspool export MODEL --onnx FILE"
        )
    described: dict[str, Any] = json.loads(written[KEY])
    return described
