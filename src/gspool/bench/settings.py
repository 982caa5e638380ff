"""What is measured, as plain data, checked before anything is made."""

from __future__ import annotations

from dataclasses import dataclass

import torch

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
}
BACKENDS = ("auto", "torch", "triton", "all")
DEFAULT_LAYERS = ("gap", "gmp", "gemean", "gsp")


@dataclass(frozen=True)
class Settings:
    """What `measure` measures.

    Args:
        layers: names of `gspool.pooling.list()`, with options where wanted: ``gsp:mu=0.2,prototypes=128``. GAP is
            measured in any case, because it is the unit.
        batch: images.
        channels: channels of the feature map; a model brings its own.
        sizes: heights and widths of feature maps, each measured by itself; a model brings its own.
        device: cpu, cuda, cuda:1; a GPU where there is one, unless given.
        dtype: float32, bfloat16, float16 or float64. With a backward pass the half types are mixed precision: weights
            stay float32, under autocast. Without one, the weights have the type too.
        backend: for layers that have one (GSP): auto, torch, triton, or all that can run here, beside each other.
        backward: a training step, forward and backward; otherwise inference.
        channels_last: let the channels of a place lie side by side in memory.
        seconds: how long to time each layer, five rounds at least.
        repeats: time exactly so many rounds instead.
        model: a backbone of `gspool.models.list_backbones()`, with random weights, to put in front of the layers.
        pixels: height and width of its images; what its weights were trained with, unless given.

    Raises:
        ValueError: if a value cannot be.

    Example:
        >>> Settings(layers=("gap", "gsp"), sizes=((14, 14),)).batch
        32
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
        counts = {"batch": self.batch, "channels": self.channels, "repeats": self.repeats}
        for name, count in counts.items():
            if count is not None and count < 1:
                raise ValueError(f"{name} must be at least 1, got {count}")
        for size in (*self.sizes, *(() if self.pixels is None else (self.pixels,))):
            if min(size) < 1:
                raise ValueError(f"a size is a height and a width of at least 1, got {size[0]}x{size[1]}")
        if not self.layers or not self.sizes:
            raise ValueError("name at least one layer and one size")
        if not 0 < self.seconds < float("inf"):
            raise ValueError(f"seconds is how long each layer is timed and must be positive, got {self.seconds}")
        for name, value, known in (("dtype", self.dtype, [*DTYPES]), ("backend", self.backend, [*BACKENDS])):
            if value not in known:
                raise ValueError(f"{name} must be one of {', '.join(known)}, got {value!r}")
        if self.pixels is not None and self.model is None:
            raise ValueError("pixels is the size of the images of a model: name one, such as timm/resnet50")

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype as torch has it."""
        return DTYPES[self.dtype]

    @property
    def memory_format(self) -> torch.memory_format:
        """The layout of maps and images as torch has it."""
        return torch.channels_last if self.channels_last else torch.contiguous_format
