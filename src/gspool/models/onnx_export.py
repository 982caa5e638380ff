"""Write an embedding model as an ONNX file that describes itself, and compare it with PyTorch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from gspool.models.export import (
    KEY,
    Exported,
    ExportGraph,
    Input,
    Output,
    export_mode,
    export_program,
    write_then_rename,
)
from gspool.models.onnx_operators import without_missing_operators
from gspool.version import __version__

if TYPE_CHECKING:
    from gspool.models.embedder import Embedder

# Largest difference of any number of any output that still counts as equal.
EQUAL = 1e-5


class OnnxFile(NamedTuple):
    """An ONNX file: where, its description, its operator set, and the image size it is bound to, None for any."""

    path: Path
    description: dict[str, Any]
    opset: int
    size: tuple[int, int] | None


def export_onnx(
    model: Embedder,
    path: str | Path,
    outputs: Sequence[Output] | None = None,
    *,
    size: tuple[int, int] | None = None,
    input: Input | None = None,
) -> OnnxFile:
    """Write a model as ONNX, with any batch and, where the backbone allows it, any image size.

    The file holds weights, normalisation and, under the metadata key ``gspool``, a JSON description: settings,
    preprocessing, outputs. `compare_with_onnx` measures the difference to ONNX Runtime. Weights beyond 2 GB go to
    NAME.onnx.data beside it. ``outputs``, ``size`` and ``input`` are those of `export_program`.

    Raises:
        ValueError: as `export_program`; if the name does not end in .onnx; if ONNX lacks an operator of the model.
        ImportError: if onnx or onnxscript is not installed.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from gspool.models import Embedder
        >>> model = Embedder("small_cnn", pooling="gap", dim=8)
        >>> with TemporaryDirectory() as folder:
        ...     written = export_onnx(model, Path(folder) / "model.onnx", ["embedding"])
        ...     [comparison] = compare_with_onnx(model, written.path, [(5, 80, 64)])
        >>> comparison.largest < 1e-5
        True
    """
    path = Path(path)
    if path.suffix != ".onnx":
        raise ValueError(f"an ONNX model is an .onnx file, got {path.name}; name it {path.stem}.onnx")
    # Before the minutes of tracing, not after.
    check_installed()
    return write_onnx(export_program(model, outputs, size=size, input=input), path)


def write_onnx(exported: Exported, path: Path) -> OnnxFile:
    """Translate an exported graph to ONNX and write it in one step.

    Raises:
        ValueError: if ONNX lacks an operator.
    """
    about = exported.description
    axes = {0: "batch"} if exported.size else {0: "batch", 2: "height", 3: "width"}
    try:
        translated = torch.onnx.export(
            without_missing_operators(exported.program),
            dynamo=True,
            verbose=False,
            input_names=[about["input"]["name"]],
            output_names=list(about["outputs"]),
            dynamic_shapes=(axes,),
            external_data=False,
        )
    except torch.onnx.OnnxExporterError as error:
        reason = str(error.__cause__ or error)
        raise ValueError(
            f"this model cannot be written as ONNX: {' '.join(reason.split())[:300]}; export it with --torch instead"
        ) from error
    if translated is None:
        raise ValueError("torch.onnx returned no program; update torch, or export with --torch instead")
    graph: Any = translated.model
    graph.producer_name, graph.producer_version = "gspool", __version__
    graph.doc_string = f"{about['model']['pooling']} on {about['model']['backbone']}: images to unit vectors."
    graph.metadata_props[KEY] = json.dumps(about, default=str)
    with write_then_rename(path) as temporary:
        translated.save(temporary)
    return OnnxFile(path, about, graph.opset_imports[""], exported.size)


def check_installed() -> None:
    """Check that the libraries for ONNX are installed.

    Raises:
        ImportError: if onnx or onnxscript is not installed.
    """
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ModuleNotFoundError as error:
        raise ImportError(f"writing ONNX needs {error.name}: pip install 'gspool[export]'", name=error.name) from error


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
