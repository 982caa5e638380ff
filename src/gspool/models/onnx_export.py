"""Write an embedding model as an ONNX file that describes itself, and compare it with PyTorch."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.export import ExportedProgram

from gspool.models.export import (
    KEY,
    Exported,
    ExportGraph,
    Input,
    Output,
    every_call,
    export_mode,
    export_program,
)
from gspool.models.weights import renamed_together
from gspool.version import __version__

if TYPE_CHECKING:
    from jaxtyping import Float

    from gspool.models.embedder import Embedder

# Largest difference of any number of any output that still counts as equal.
EQUAL = 1e-5
# Each step squares the error of an inverse. The error starts at 1 - 1/k for a matrix of condition k, so these steps
# reach the last digit for any k that float64 can distinguish from singular (log2 of 40 * 2**52 is 57).
INVERSE_STEPS = 58
# Corrects what the products have rounded: a solution may be far smaller than the inverse would allow.
REFINEMENTS = 3
aten = torch.ops.aten


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


def write_onnx(exported: Exported, path: Path, *copies: Path) -> OnnxFile:
    """Translate an exported graph to ONNX and write it, to every path in one step."""
    about = exported.description
    axes = {0: "batch"} if exported.size else {0: "batch", 2: "height", 3: "width"}
    try:
        translated: Any = torch.onnx.export(
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
    graph = translated.model
    graph.producer_name, graph.producer_version = "gspool", __version__
    graph.doc_string = f"{about['model']['pooling']} on {about['model']['backbone']}: images to unit vectors."
    graph.metadata_props[KEY] = json.dumps(about, default=str)
    for each in (path, *copies):
        with renamed_together(each.parent, f".{each.name}.saving") as temporary:
            translated.save(temporary / each.name)
    return OnnxFile(path, about, graph.opset_imports[""], exported.size)


def check_installed() -> None:
    """Check that the libraries for ONNX are installed."""
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
        return torch.tensor([*self.differences.values()], dtype=torch.float64).max().item()


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
    other = 1 if size else 2
    return [(1, height, width), (2, other * height, width), (5, height, other * width)]


def open_session(path: str | Path) -> Any:
    """Open an ONNX file on the CPU."""
    if not Path(path).is_file():
        raise ValueError(f"there is no file {path}; write it with gspool export MODEL --onnx {path}")
    try:
        import onnxruntime
    except ModuleNotFoundError as error:
        raise ImportError("running ONNX needs onnxruntime: pip install 'gspool[export]'", name=error.name) from error
    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])


def read_description(session: Any) -> dict[str, Any]:
    """Read the description of an ONNX file."""
    written = session.get_modelmeta().custom_metadata_map
    if KEY not in written:
        raise ValueError(
            f"this ONNX file has no metadata {KEY!r} (it has {', '.join(written) or 'none'}); "
            "write it with gspool export MODEL --onnx FILE"
        )
    described: dict[str, Any] = json.loads(written[KEY])
    return described


def without_missing_operators(program: ExportedProgram) -> ExportedProgram:
    """Rewrite the operators of a graph that ONNX lacks; a graph without any is returned as it is.

    Raises:
        ValueError: if a Cholesky factor is used for something else than solving.
    """
    table: dict[Any, Callable[..., Any]] = {}
    for node in every_call(program):
        first: Any = node.args[0] if node.args else None
        if node.target is aten.scaled_dot_product_attention.default and first.meta["val"].ndim != 4:
            table[node.target] = attention
        elif node.target in (aten.cdist.default, aten._cdist_forward.default):
            table[node.target] = pairwise_distance
        elif node.target is aten.linalg_cholesky_ex.default:
            _check_only_solved(node)
            table[node.target] = postponed_factor
            table[aten.cholesky_solve.default] = solve_postponed
    return program.run_decompositions(table) if table else program


def attention(
    query: Float[Tensor, "*B N D"],
    key: Float[Tensor, "*B K D"],
    value: Float[Tensor, "*B K E"],
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Float[Tensor, "*B N E"]:
    """Compute attention by plain products: the exporter's own translation takes queries of four axes only."""
    if is_causal or enable_gqa:
        raise ValueError("causal and grouped attention of other than four axes cannot be exported to ONNX")
    logits = (query @ key.transpose(-2, -1)) * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    if attn_mask is not None:
        logits = logits.masked_fill(~attn_mask, -torch.inf) if attn_mask.dtype == torch.bool else logits + attn_mask
    return torch.softmax(logits, dim=-1) @ value


def pairwise_distance(
    left: Float[Tensor, "*B M D"], right: Float[Tensor, "*B N D"], p: float = 2.0, compute_mode: int | None = None
) -> Float[Tensor, "*B M N"]:
    """Compute distances by direct differences, as exact as the operator it replaces."""
    return torch.linalg.vector_norm(left[..., :, None, :] - right[..., None, :, :], ord=p, dim=-1)


def postponed_factor(
    matrix: Float[Tensor, "*B N N"], *, upper: bool = False, check_errors: bool = False
) -> tuple[Tensor, Tensor]:
    """Replace a Cholesky factorisation: pass on the matrix itself, which `solve_postponed` inverts."""
    return matrix.clone(), torch.zeros_like(matrix[..., 0, 0], dtype=torch.int32)


def solve_postponed(
    right: Float[Tensor, "*B N K"], matrix: Float[Tensor, "*B N N"], upper: bool = False
) -> Float[Tensor, "*B N K"]:
    """Solve ``A x = b`` for a positive definite A by the Newton-Schulz inverse ``X <- X (2 - A X)``.

    From ``X = 1/|A|`` every eigenvalue's error ``1 - x a`` lies in [0, 1) and is squared by each step: a fixed number
    of matrix products and no branch, for a matrix of any size.
    """
    norm = matrix.abs().sum(-1).amax(-1)[..., None, None]
    identity = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
    inverse = identity / norm
    for _ in range(INVERSE_STEPS):
        inverse = inverse @ (2 * identity - matrix @ inverse)
    solution = inverse @ right
    for _ in range(REFINEMENTS):
        solution = solution + inverse @ (right - matrix @ solution)
    return solution


def _check_only_solved(node: torch.fx.Node) -> None:
    factors = [user for user in node.users if user.args[1] == 0]
    uses = {use.target for factor in factors for use in factor.users}
    if uses - {aten.cholesky_solve.default}:
        raise ValueError(
            f"ONNX has no Cholesky factorisation, and this graph needs the factor itself, for {uses}; "
            "export it with --torch instead"
        )
