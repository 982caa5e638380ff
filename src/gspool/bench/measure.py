"""Measure layers against each other: by themselves, and in a whole network."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch

from gspool.bench.contenders import Contender, Refused, channels_of, make_contenders, make_features
from gspool.bench.layer_words import read_layers, with_backends
from gspool.bench.network import make_network
from gspool.bench.settings import Settings
from gspool.bench.steps import Step, failures_told, peak_memory
from gspool.bench.timing import Budget, Spread, busy_before, in_turns, keep_freed_pages
from gspool.models.device import chosen_device

Tell = Callable[[str, float], None]


class Cost(NamedTuple):
    """What a step takes: milliseconds over some rounds, bytes at its peak beyond weights and inputs (None on a CPU)."""

    time: Spread
    repeats: int
    memory: int | None


class Row(NamedTuple):
    """What a layer takes on one feature map: by itself, and with the whole network where there is one."""

    title: str
    name: str
    backend: str | None
    parameters: int
    channels: int
    size: str
    alone: Cost
    network: Cost | None


class Measured(NamedTuple):
    """What was measured, where, what was left out because it cannot run here, and how busy the cores were before."""

    settings: Settings
    device: torch.device
    rows: list[Row]
    refused: list[Refused]
    busy: float | None


def measure(settings: Settings, tell: Tell | None = None) -> Measured:
    """Measure what the layers of the settings cost here.

    Args:
        settings: layers, shapes, device, type and time.
        tell: is given what is being timed, and the part of it that is done.

    Raises:
        ValueError: if a layer, a backend, a device or a type is not there, or something does not fit into memory.
        ImportError: if a layer or the model needs a library that is missing.

    Example:
        >>> shape = {"batch": 2, "channels": 8, "sizes": ((3, 3), (5, 4)), "device": "cpu"}
        >>> measured = measure(Settings(layers=("gsp:prototypes=4",), repeats=2, **shape))
        >>> [(row.title, row.size) for row in measured.rows]
        [('gap', '3x3'), ('gsp:prototypes=4', '3x3'), ('gap', '5x4'), ('gsp:prototypes=4', '5x4')]
    """
    # Wrong names are told before anything is made.
    words = with_backends(read_layers(settings.layers), settings.backend)
    device = chosen_device(settings.device)
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"time is measured on cpu and cuda, got {settings.device}")
    busy = busy_before()
    keep_freed_pages()
    network = None if settings.model is None else make_network(settings.model, settings, device)
    drawn = (make_features(settings, size, device) for size in settings.sizes)
    rows: list[Row] = []
    refused: list[Refused] = []
    for features in drawn if network is None else [network.features]:
        contenders, refused = make_contenders(words, features, settings)
        size = "x".join(str(length) for length in (features.shape[2:] if features.ndim == 4 else features.shape[1:2]))
        steps = {each.title: each.step for each in contenders}
        alone = _costs(steps, settings, device, f"layers at {size}", tell)
        whole: Mapping[str, Cost] = {}
        if network is not None:
            with failures_told(network.name, settings.torch_dtype, device):
                steps = {each.title: network.step(each.layer, settings) for each in contenders}
                whole = _costs(steps, settings, device, network.name, tell)
        rows += [_row(each, channels_of(features), size, alone, whole) for each in contenders]
    return Measured(settings, device, rows, refused, busy)


def _costs(
    steps: Mapping[str, Step], settings: Settings, device: torch.device, title: str, tell: Tell | None
) -> dict[str, Cost]:
    """Time steps in turns, then look at their memory."""
    budget = Budget(settings.seconds, settings.repeats)
    times = in_turns(steps, device, budget, None if tell is None else lambda done: tell(title, done))
    return {
        name: Cost(Spread.of(times[name]), len(times[name]), peak_memory(step, device)) for name, step in steps.items()
    }


def _row(contender: Contender, channels: int, size: str, alone: Mapping[str, Cost], whole: Mapping[str, Cost]) -> Row:
    return Row(
        title=contender.title,
        name=contender.name,
        backend=contender.backend,
        parameters=sum(parameter.numel() for parameter in contender.layer.parameters()),
        channels=channels,
        size=size,
        alone=alone[contender.title],
        network=whole.get(contender.title),
    )
