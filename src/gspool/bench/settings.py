"""What to measure: layers as a person writes them, ``gsp:mu=0.2,prototypes=128``, shapes, device, type, time."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from gspool import pooling
from gspool.pooling.registry import check_options, layer_class

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
}
BACKENDS = ("auto", "torch", "triton", "all")
DEFAULT_LAYERS = ("gap", "gmp", "gemean", "gsp")
UNIT = "gap"
EVERY = "all"
_WORDS = {"true": True, "false": False, "none": None, "null": None}


@dataclass(frozen=True)
class Settings:
    """The settings of `measure`.

    Args:
        layers: names of `gspool.pooling.list()`, with or without options: ``gsp:mu=0.2,prototypes=128``. GAP is
            always measured, because it is the unit.
        batch: number of images.
        channels: channels of the feature map; a model has its own.
        sizes: heights and widths of feature maps, each measured by itself; a model has its own.
        device: cpu, cuda, cuda:1; by default a GPU if there is one.
        dtype: float32, bfloat16, float16 or float64. With a backward pass the half types are mixed precision: weights
            stay float32, under autocast. Without one, the weights have that type too.
        backend: for layers that have one (GSP): auto, torch, triton, or all that can run here.
        backward: a training step, forward and backward; otherwise inference.
        channels_last: use the channels-last memory format.
        seconds: how long to time each layer, five rounds at least.
        repeats: time exactly this many rounds instead.
        model: a backbone of `gspool.models.list_backbones()`, with random weights, to put before the layers.
        pixels: height and width of its images; by default the size its weights were trained with.

    Raises:
        ValueError: if a value is out of range.
    """

    layers: tuple[str, ...] = DEFAULT_LAYERS
    batch: int = 32
    channels: int = 2048
    sizes: tuple[tuple[int, int], ...] = ((7, 7),)
    device: str | None = None
    dtype: str = "float32"
    backend: str = "auto"
    backward: bool = True
    channels_last: bool = False
    seconds: float = 1.0
    repeats: int | None = None
    model: str | None = None
    pixels: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        for name in ("batch", "channels", "repeats"):
            count = getattr(self, name)
            if count is not None and count < 1:
                raise ValueError(f"{name} must be at least 1, got {count}")
        for size in (*self.sizes, *(() if self.pixels is None else (self.pixels,))):
            if min(size) < 1:
                raise ValueError(f"a size is a height and a width of at least 1, got {size[0]}x{size[1]}")
        if not self.layers or not self.sizes:
            raise ValueError("name at least one layer and one size")
        if not 0 < self.seconds < float("inf"):
            raise ValueError(f"seconds is how long each layer is timed and must be positive, got {self.seconds}")
        for name, known in (("dtype", DTYPES), ("backend", BACKENDS)):
            if getattr(self, name) not in known:
                raise ValueError(f"{name} must be one of {', '.join(known)}, got {getattr(self, name)!r}")
        if self.pixels is not None and self.model is None:
            raise ValueError("pixels is the size of the images of a model: name one, such as timm/resnet50")

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype as a torch.dtype."""
        return DTYPES[self.dtype]

    @property
    def memory_format(self) -> torch.memory_format:
        """The memory format of maps and images."""
        return torch.channels_last if self.channels_last else torch.contiguous_format


class LayerSpec(NamedTuple):
    """A layer to measure: its title in the table, its name in the registry, its options."""

    title: str
    name: str
    options: dict[str, Any]


def read_layers(words: Sequence[str], backend: str = "auto") -> list[LayerSpec]:
    """Read names with options; GAP is always the first, and the word ``all`` is every layer.

    ``backend`` is set for layers that have one, with one row per backend for ``all``; an explicit option stays.

    Raises:
        ValueError: if there is no such layer or option, with the right names, or no layer has a backend.

    Example:
        >>> for spec in read_layers(["gsp:mu=0.2"], backend="all"):
        ...     print(spec)
        LayerSpec(title='gap', name='gap', options={})
        LayerSpec(title='gsp:mu=0.2 (torch)', name='gsp', options={'mu': 0.2, 'backend': 'torch'})
        LayerSpec(title='gsp:mu=0.2 (triton)', name='gsp', options={'mu': 0.2, 'backend': 'triton'})
    """
    asked = [name for word in words for name in (pooling.list() if word == EVERY else [word])]
    specs = [read_layer(word) for word in dict.fromkeys([UNIT, *asked])]
    if backend == "auto":
        return specs
    found = []
    for spec in specs:
        if "backend" not in pooling.options(spec.name) or "backend" in spec.options:
            found.append(spec)
            continue
        for each in ("torch", "triton") if backend == "all" else (backend,):
            found.append(LayerSpec(f"{spec.title} ({each})", spec.name, spec.options | {"backend": each}))
    if found == specs:
        raise ValueError(f"only GSP has a backend, and none of {', '.join(spec.title for spec in specs)} has one")
    return found


def read_layer(word: str) -> LayerSpec:
    """Read one name with its options.

    Raises:
        ValueError: if it is not written as NAME or NAME:OPTION=VALUE,..., or there is no such layer or option.
    """
    name, _, rest = word.partition(":")
    layer_class(name)
    options: dict[str, Any] = {}
    for part in rest.split(",") if rest else ():
        option, _, value = part.partition("=")
        if not value:
            raise ValueError(f"options are written NAME:OPTION=VALUE,OPTION=VALUE, got {part!r} in {word!r}")
        options[option] = _value(value)
    check_options(name, options)
    if options.get("warm_start"):
        raise ValueError(
            f"{word}: during a warm start the layer only averages, so its cost would not be measured; leave it out"
        )
    return LayerSpec(word, name, options)


def _value(text: str) -> Any:
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
