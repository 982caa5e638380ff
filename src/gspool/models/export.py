"""Export an embedding model by `torch.export`: PyTorch's own operators, any batch and any image size."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import torch
from torch import nn
from torch.export import Dim, ExportedProgram

from gspool.models.freezing import evaluating
from gspool.models.weights import renamed_together
from gspool.version import __version__

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from gspool.models.embedder import Embedder

Output = Literal["embedding", "weights", "attributes"]
Input = Literal["uint8", "float32"]
OUTPUTS: tuple[Output, ...] = get_args(Output)
# The name of the description in an ONNX file (metadata) and, with .json, in a .pt2 archive.
KEY = "gspool"
MEANING = {
    "embedding": "unit vectors; compare two by their dot product",
    "weights": "where the model looked: one number per position, summing to 1 over an image",
    "attributes": "how much of each prototype an image holds, summing to 1",
}
# Operators of PyTorch itself, with its control flow; anything else would need our kernels where the file is used.
PORTABLE = ("aten", "prim", "prims", "higher_order", "_operator", "math")
# The traced graph and the model itself run the same operators; only their order of summation may differ.
TOLERANCE = 1e-5


class Exported(NamedTuple):
    """An exported graph, the description that goes with it, and the image size it is bound to, None for any."""

    program: ExportedProgram
    description: dict[str, Any]
    size: tuple[int, int] | None


def export_program(
    model: Embedder,
    outputs: Sequence[Output] | None = None,
    *,
    size: tuple[int, int] | None = None,
    input: Input | None = None,
) -> Exported:
    """Trace a model into a graph for any number of images and, where the backbone allows it, any image size.

    The graph is checked before it is returned: at a batch and an image size that it was not traced with, it must
    return the same outputs as the model. It never holds Triton kernels. The model is traced in evaluation mode.

    Args:
        model: the embedding model.
        outputs: ``embedding``, ``weights``, ``attributes``, in your order; by default all that the layer has.
        size: bind the graph to one height and width; by default any size, if the backbone takes more than one.
        input: ``uint8`` (0 to 255) or ``float32`` (0 to 1); bytes unless the model takes normalised pixels.

    Raises:
        ValueError: if an output or input does not exist, or the graph is bound to the size it was traced with.

    Example:
        >>> from gspool.models import Embedder
        >>> exported = export_program(Embedder("small_cnn", pooling="gap", dim=8), ["embedding"])
        >>> embedding, = exported.program.module()(torch.zeros(3, 3, 48, 32, dtype=torch.uint8))
        >>> embedding.shape, exported.size
        (torch.Size([3, 8]), None)
    """
    with export_mode(model):
        graph = ExportGraph(model, outputs, input)
        if size is None and not _takes(graph, wider(model.pixels.crop)):
            size = model.pixels.crop
        try:
            program = _trace(graph, size)
            refuse_foreign_operators(program)
            _prove(program, graph, size)
        except (AssertionError, RuntimeError) as error:
            raise ValueError(_bound(graph, str(error), size)) from error
    return Exported(program, graph.describe(size), size)


def save_program(exported: Exported, path: str | Path) -> None:
    """Write a graph as a .pt2 archive with its description in ``gspool.json``, in one step.

    Raises:
        ValueError: if the name does not end in .pt2.
    """
    path = Path(path)
    if path.suffix != ".pt2":
        raise ValueError(f"an exported program is a .pt2 file, got {path.name}; call it {path.stem}.pt2")
    about = {f"{KEY}.json": json.dumps(exported.description, default=str)}
    with renamed_together(path.parent, f".{path.name}.saving") as temporary:
        torch.export.save(exported.program, temporary / path.name, extra_files=about)


@contextmanager
def export_mode(model: Embedder) -> Iterator[None]:
    """Set evaluation mode, no gradients and the plain backend for a while."""
    chosen = {part: part.backend for part in model.modules() if isinstance(getattr(part, "backend", None), str)}
    try:
        # A model that asks for Triton by name must also be exported where there is none.
        for part in chosen:
            part.backend = "torch"  # type: ignore[assignment]
        with evaluating(model), torch.no_grad():
            yield
    finally:
        for part, backend in chosen.items():
            part.backend = backend


def wider(size: tuple[int, int]) -> tuple[int, int]:
    """Return a size whose sides differ: equal ones would be taken for one and the same variable."""
    return size[0], 2 * size[1]


def _takes(graph: ExportGraph, size: tuple[int, int]) -> bool:
    """Return whether the model itself runs at this size; a model for a single size raises a ValueError."""
    try:
        graph(graph.example(1, size))
    except ValueError:
        return False
    return True


def _trace(graph: ExportGraph, size: tuple[int, int] | None) -> ExportedProgram:
    images = graph.example(2, size or wider(graph.model.pixels.crop))
    axes = {0: Dim.DYNAMIC} if size else {0: Dim.DYNAMIC, 2: Dim.DYNAMIC, 3: Dim.DYNAMIC}
    with padded_by_integers():
        return torch.export.export(graph, (images,), dynamic_shapes=(axes,), strict=False)


@contextmanager
def padded_by_integers() -> Iterator[None]:
    """Let timm pad as TensorFlow does by `same_padding` for a while: its own formula takes the tracer minutes."""
    padding: Any = sys.modules.get("timm.layers.padding")
    if padding is None:
        yield
        return
    own = padding.get_same_padding
    padding.get_same_padding = same_padding
    try:
        yield
    finally:
        padding.get_same_padding = own


def same_padding(size: int, kernel: int, stride: int, dilation: int) -> int:
    """Return how many pixels "same" padding adds to a side, without floats, and without a maximum where it is known.

    Of a size that is a variable, each float division and each maximum makes the sizes of all later layers harder.
    """
    reach = (kernel - 1) * dilation + 1
    needed = ((size + stride - 1) // stride - 1) * stride + reach - size
    return needed if reach >= stride else max(needed, 0)


def refuse_foreign_operators(program: ExportedProgram) -> None:
    """Check that a graph holds nothing but PyTorch's own operators."""
    for node in every_call(program):
        target: Any = node.target
        home = target.namespace if hasattr(target, "namespace") else getattr(target, "__module__", "")
        if home not in PORTABLE and not home.startswith("torch"):
            raise ValueError(
                f"the graph holds {target}, which is no operator of PyTorch and would not run elsewhere; "
                "create the model with pooling_options={'backend': 'torch'}"
            )


def every_call(program: ExportedProgram) -> Iterator[torch.fx.Node]:
    """Yield the operators of a graph, including those inside its control flow and autocast regions."""
    for part in program.graph_module.modules():
        if isinstance(part, torch.fx.GraphModule):
            yield from (node for node in part.graph.nodes if node.op == "call_function")


def _prove(program: ExportedProgram, graph: ExportGraph, size: tuple[int, int] | None) -> None:
    """Compare graph and model on images that the graph was not traced with, those of the model's own size included."""
    height, width = graph.model.pixels.crop
    for batch, shape in ((1, (2 * height, width)), (3, (height, width))) if size is None else ((3, size),):
        images = graph.example(batch, shape, seed=1)
        for name, ours, theirs in zip(graph.outputs, graph(images), program.module()(images), strict=True):
            difference = (ours - theirs).abs().max().item() if ours.shape == theirs.shape else float("inf")
            # Written so that a NaN is refused as well.
            if not difference <= TOLERANCE:
                raise AssertionError(f"{name} is off by {difference:.2g}")


def _bound(graph: ExportGraph, reason: str, size: tuple[int, int] | None) -> str:
    backbone = graph.model.settings.backbone or type(graph.model.backbone).__name__
    first = " ".join(reason.split())[:300]
    if size is not None:
        return f"{backbone} with {graph.model.settings.pooling} cannot be exported for {size[0]} x {size[1]}: {first}"
    height, width = graph.model.pixels.crop
    return (
        f"{backbone} with {graph.model.settings.pooling} cannot be exported for images of any size: its graph is bound "
        f"to the one it was traced with ({first}); export it for one size, size=({height}, {width}) or "
        f"--size {height} {width} on the command line"
    )


class ExportGraph(nn.Module):
    """The graph to export: images in, the chosen outputs of an embedding model out, in their order.

    Weights are a map [B, h, w] where the tokens form one, so that a consumer need not know the grid.

    Raises:
        ValueError: if an output does not exist, is named twice, or is none that this pooling layer has, or if the model
            does not take this type.
    """

    def __init__(self, model: Embedder, outputs: Sequence[Output] | None = None, input: Input | None = None) -> None:
        super().__init__()
        self.model = model
        self.input: Input = input or ("uint8" if model.settings.normalise else "float32")
        if self.input not in get_args(Input):
            raise ValueError(f"input must be one of {', '.join(get_args(Input))}, got {input!r}")
        if self.input == "uint8" and not model.settings.normalise:
            raise ValueError(
                "this model was created with normalise=False and takes normalised pixels: use input='float32'"
            )
        with torch.no_grad():
            found = self._all_outputs(self.example(1, model.pixels.crop))
        present: list[Output] = [name for name in OUTPUTS if name in found]
        for name in outputs or ():
            if name not in OUTPUTS:
                raise ValueError(f"there is no output {name!r}; the outputs are {', '.join(OUTPUTS)}")
            if name not in present:
                raise ValueError(
                    f"the pooling layer {model.settings.pooling} has no {name}; this model has {', '.join(present)}"
                )
        if outputs is not None and (not outputs or len(set(outputs)) < len(outputs)):
            raise ValueError(f"name each output once, at least one of {', '.join(present)}, got {list(outputs)}")
        self.outputs: tuple[Output, ...] = tuple(outputs or present)

    def _all_outputs(self, images: Float[Tensor, "B 3 H W"]) -> dict[str, Tensor]:
        embedded = self.model.embed(images)
        weights = embedded.weights
        if weights is not None and embedded.grid is not None:
            weights = weights.unflatten(1, embedded.grid)
        named = {"embedding": embedded.embedding, "weights": weights, "attributes": embedded.attributes}
        return {name: value for name, value in named.items() if value is not None}

    def forward(self, images: Float[Tensor, "B 3 H W"]) -> tuple[Tensor, ...]:
        """Embed, and return the chosen outputs in their order."""
        found = self._all_outputs(images)
        return tuple(found[name] for name in self.outputs)

    def example(self, count: int, size: tuple[int, int], seed: int = 0) -> Float[Tensor, "B 3 H W"]:
        """Draw random images as the graph takes them."""
        device = next((parameter.device for parameter in self.model.parameters()), torch.device("cpu"))
        draw = torch.Generator().manual_seed(seed)
        if self.input == "uint8":
            return torch.randint(256, (count, 3, *size), dtype=torch.uint8, generator=draw).to(device)
        return torch.rand(count, 3, *size, generator=draw).to(device)

    def describe(self, size: tuple[int, int] | None) -> dict[str, Any]:
        """Describe the exported model: its settings, its input with the preprocessing before it, its outputs.

        ``size`` is the image size that the graph is bound to, None for any.
        """
        pixels = self.model.pixels
        settings = self.model.settings._asdict()
        settings.pop("pixels")
        if self.input == "uint8":
            values = "RGB bytes, 0 to 255; the model normalises"
        elif self.model.settings.normalise:
            values = "RGB, 0 to 1; the model normalises"
        else:
            values = (
                f"normalised by you: {pixels.channel_order}, {pixels.range}, minus {list(pixels.mean)}, "
                f"divided by {list(pixels.std)}"
            )
        return {
            "gspool": __version__,
            "model": {**settings, "out_dim": self.model.out_dim},
            "input": {
                "name": "images",
                "type": self.input,
                "axes": ["batch", "3", "height", "width"],
                "values": values,
                # Resize the shorter side, then crop the middle: what the figures of the model were measured with.
                "resize": pixels.resize,
                "interpolation": pixels.interpolation,
                "crop": list(pixels.crop),
                "size": None if size is None else list(size),
            },
            "normalisation": pixels.as_dict(),
            "outputs": {name: MEANING[name] for name in self.outputs},
        }
