"""Write an embedding model as an ONNX file that describes itself."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from gspool.models.export import Exported, export_program, write_then_rename
from gspool.models.export_graph import KEY, Input, Output
from gspool.models.onnx_operators import without_missing_operators
from gspool.version import __version__

if TYPE_CHECKING:
    from gspool.models.embedder import Embedder


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
    preprocessing, outputs. `gspool.models.onnx_check.compare_with_onnx` measures the difference to ONNX Runtime.

    Args:
        model: the embedding model.
        path: the file, NAME.onnx; weights beyond 2 GB go to NAME.onnx.data beside it.
        outputs: ``embedding``, ``weights``, ``attributes``, in your order; by default all that the layer has.
        size: bind the graph to one height and width; by default any size, if the backbone takes more than one.
        input: ``uint8`` (0 to 255) or ``float32`` (0 to 1); bytes unless the model takes normalised pixels.

    Raises:
        ValueError: as `export_program`; if the name does not end in .onnx; if ONNX lacks an operator of the model.
        ImportError: if onnx or onnxscript is not installed.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from gspool.models import Embedder
        >>> from gspool.models.onnx_check import compare_with_onnx
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
