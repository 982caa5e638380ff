"""Measure layers against each other: by themselves, and in a whole network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import torch

from gspool import pooling
from gspool.bench.settings import UNIT, LayerSpec, Settings, read_layers
from gspool.bench.timing import (
    HALF,
    Spread,
    Step,
    in_turns,
    keep_freed_pages,
    load_per_core,
    peak_memory,
    readable_failures,
)
from gspool.functional.kernels.dispatch import uses_kernels
from gspool.models.device import chosen_device
from gspool.pooling import GSP
from gspool.terminal.status import checking_arguments

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor, nn

    from gspool.pooling import PoolingLayer

Progress = Callable[[str, float], None]
# Largest difference from the plain version in float64, relative to the largest value.
ALLOWED = {"float32": 1e-4, "rounded": 2e-2}
# Images to compare: few, because float64 is slow on a GPU.
COMPARED = 4


class Cost(NamedTuple):
    """The cost of a step: milliseconds, number of rounds, peak bytes beyond weights and inputs (None on a CPU)."""

    time: Spread
    repeats: int
    memory: int | None


class Row(NamedTuple):
    """The cost of a layer on one feature map: by itself, and in the whole network if there is one."""

    title: str
    name: str
    backend: str | None
    parameters: int
    channels: int
    size: str
    alone: Cost
    network: Cost | None


class Refused(NamedTuple):
    """A layer that was left out because its backend cannot run here."""

    title: str
    reason: str


class Measured(NamedTuple):
    """What was measured, on which device, what was left out, and the load per core before."""

    settings: Settings
    device: torch.device
    rows: list[Row]
    refused: list[Refused]
    busy: float | None

    def unit_of(self, row: Row) -> Row:
        """Return average pooling on the same map."""
        return next(each for each in self.rows if each.title == UNIT and each.size == row.size)


def measure(settings: Settings, progress: Progress | None = None) -> Measured:
    """Measure what pooling layers cost on this machine.

    Args:
        settings: layers, shapes, device, type and time.
        progress: called with what is being timed and the fraction done.

    Raises:
        ValueError: if a layer, backend, device or type is not available, or something does not fit into memory.
        ImportError: if a layer or the model needs a library that is missing.

    Example:
        >>> shape = {"batch": 2, "channels": 8, "sizes": ((3, 3), (5, 4)), "device": "cpu"}
        >>> measured = measure(Settings(layers=("gsp:prototypes=4",), repeats=2, **shape))
        >>> [(row.title, row.size) for row in measured.rows]
        [('gap', '3x3'), ('gsp:prototypes=4', '3x3'), ('gap', '5x4'), ('gsp:prototypes=4', '5x4')]
    """
    # Wrong names are refused before anything is built.
    specs = read_layers(settings.layers, settings.backend)
    device = chosen_device(settings.device)
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"time is measured on cpu and cuda, got {settings.device}")
    busy = load_per_core()
    keep_freed_pages()
    network = None if settings.model is None else make_network(settings.model, settings, device)
    maps = (make_features(settings, size, device) for size in settings.sizes)
    rows: list[Row] = []
    refused: list[Refused] = []
    for features in maps if network is None else [network[2]]:
        # A map [B, C, H, W], or tokens [B, N, C].
        is_map = features.ndim == 4
        size = "x".join(str(length) for length in (features.shape[2:] if is_map else features.shape[1:2]))
        channels = features.shape[1 if is_map else 2]
        layers, left_out = make_layers(specs, features, channels, settings)
        refused += [each for each in left_out if each not in refused]
        steps = {spec.title: _tried(spec.title, layer, features, settings) for spec, layer, _ in layers}
        alone = _costs(steps, settings, device, f"layers at {size}", progress)
        whole: dict[str, Cost] = {}
        if settings.model is not None and network is not None:
            backbone, images, _ = network
            steps = {
                spec.title: _tried(settings.model, torch.nn.Sequential(backbone, layer), images, settings, False)
                for spec, layer, _ in layers
            }
            with readable_failures(settings.model, settings.torch_dtype, device):
                whole = _costs(steps, settings, device, settings.model, progress)
        for spec, layer, backend in layers:
            parameters = sum(parameter.numel() for parameter in layer.parameters())
            costs = (alone[spec.title], whole.get(spec.title))
            rows.append(Row(spec.title, spec.name, backend, parameters, channels, size, *costs))
    return Measured(settings, device, rows, refused, busy)


def _costs(
    steps: dict[str, Step], settings: Settings, device: torch.device, title: str, progress: Progress | None
) -> dict[str, Cost]:
    """Time steps in turns, then measure their memory."""
    told = None if progress is None else partial(progress, title)
    times = in_turns(steps, device, settings.seconds, settings.repeats, told)
    return {
        name: Cost(Spread.of(times[name]), len(times[name]), peak_memory(step, device)) for name, step in steps.items()
    }


def _tried(title: str, module: nn.Module, inputs: Tensor, settings: Settings, inputs_learn: bool = True) -> Step:
    with readable_failures(title, settings.torch_dtype, inputs.device):
        step = Step(module, inputs, settings.torch_dtype, backward=settings.backward, inputs_learn=inputs_learn)
        step()
    return step


def make_features(settings: Settings, size: tuple[int, int], device: torch.device) -> Float[Tensor, "B C H W"]:
    """Draw feature maps, positive as after the last ReLU of a backbone."""
    shape = (settings.batch, settings.channels, *size)
    try:
        drawn = torch.randn(shape, generator=torch.Generator().manual_seed(0)).relu_()
        return drawn.to(device, settings.torch_dtype, memory_format=settings.memory_format)
    # Torch has no exception of its own for full memory on a CPU.
    except RuntimeError as error:
        raise ValueError(
            f"features of shape {shape} do not fit into memory; use a smaller batch, fewer channels or a smaller map"
        ) from error


def make_network(
    name: str, settings: Settings, device: torch.device
) -> tuple[nn.Module, Float[Tensor, "B 3 H W"], Float[Tensor, "B C h w"]]:
    """Create a backbone with random weights and images; return both, and the features in their own layout and dtype."""
    # Imported here, because everything else needs torch alone.
    from gspool.models import create_backbone

    backbone = create_backbone(name)
    height, width = settings.pixels or backbone.pixels.crop
    backbone.to(device).to(memory_format=settings.memory_format)
    drawn = torch.randn(settings.batch, 3, height, width, generator=torch.Generator().manual_seed(0))
    # In mixed precision images stay float32; the first convolution rounds them.
    mixed = settings.backward and settings.torch_dtype in HALF
    dtype = torch.float32 if mixed else settings.torch_dtype
    images = drawn.to(device, dtype, memory_format=settings.memory_format)
    step = _tried(name, backbone, images, settings, inputs_learn=False)
    return backbone, images, step.forward().detach()


def make_layers(
    specs: Sequence[LayerSpec], features: Tensor, channels: int, settings: Settings
) -> tuple[list[tuple[LayerSpec, PoolingLayer, str | None]], list[Refused]]:
    """Create the layers, each with its backend; with ``all`` backends, those that cannot run here are left out."""
    made, refused = [], []
    for spec in specs:
        # An option that a layer refuses is a wrong argument.
        with checking_arguments():
            layer = pooling.create(spec.name, channels, **spec.options).to(features.device)
        inside = _gsp_of(layer)
        backend = None
        try:
            if inside is not None:
                by_kernels = uses_kernels(inside.backend, len(inside.prototypes), features, inside.prototypes)
                backend = "triton" if by_kernels else "torch"
        except ValueError as error:
            if settings.backend != "all":
                raise
            refused.append(Refused(spec.title, str(error)))
            continue
        if backend == "triton":
            check_kernels(layer, features)
        made.append((spec, layer, backend))
    return made, refused


def check_kernels(layer: PoolingLayer, features: Float[Tensor, "B C H W"]) -> None:
    """Compare vectors and gradients of the kernels with the plain version in float64: wrong kernels are not timed.

    Raises:
        ValueError: if they differ by more than `ALLOWED`.
    """
    few = features[:COMPARED].detach()
    twin = deepcopy(layer).double()
    inside = _gsp_of(twin)
    if inside is not None:
        inside.backend = "torch"
    exact = inside is not None and inside.precision == "exact" and features.dtype == torch.float32
    allowed = ALLOWED["float32" if exact else "rounded"]
    found, plain = _results(deepcopy(layer), few, features.dtype), _results(twin, few.double(), torch.float64)
    for name, ours, truth in zip(("vectors", "gradients"), found, plain, strict=True):
        error = float((ours.double() - truth).abs().max() / truth.abs().max())
        if not error <= allowed:
            raise ValueError(
                f"the kernels' {name} are off by {error:.1e} of the largest value, more than {allowed:.0e}; they are "
                "not timed. Please report it, with your GPU and the versions of torch and triton; backend='torch' works"
            )


def _results(layer: PoolingLayer, features: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    step = Step(layer, features, dtype)
    output = step.forward()
    incoming = torch.randn(output.shape, generator=torch.Generator().manual_seed(0)).to(output)
    return output.detach(), torch.autograd.grad(output, step.inputs, incoming)[0]


def _gsp_of(layer: torch.nn.Module) -> GSP | None:
    return next((part for part in layer.modules() if isinstance(part, GSP)), None)
