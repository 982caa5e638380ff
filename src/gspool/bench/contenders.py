"""The layers of a measurement: made, put on the device, and tried once on the features that they will be timed with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch

from gspool import pooling
from gspool.bench.kernels import backend_of, check_kernels
from gspool.bench.steps import InferenceStep, Step, TrainingStep, failures_told
from gspool.terminal.status import checking_arguments

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from gspool.bench.layer_words import LayerWord
    from gspool.bench.settings import Settings


class Contender(NamedTuple):
    """A layer that can run here: how it is called, by which backend it pools (None if it has no choice), its step."""

    title: str
    name: str
    backend: str | None
    layer: pooling.PoolingLayer
    step: Step


class Refused(NamedTuple):
    """A layer that was left out because its backend cannot run here."""

    title: str
    reason: str


def make_features(settings: Settings, size: tuple[int, int], device: torch.device) -> Float[Tensor, "B C H W"]:
    """Draw feature maps, positive as after the last ReLU of a backbone.

    Raises:
        ValueError: if they do not fit into memory.
    """
    shape = (settings.batch, settings.channels, *size)
    try:
        drawn = torch.randn(shape, generator=torch.Generator().manual_seed(0)).relu_()
        return drawn.to(device, settings.torch_dtype, memory_format=settings.memory_format)
    # Torch has no class of its own for a CPU whose memory is full.
    except RuntimeError as error:
        raise ValueError(
            f"features of shape {shape} do not fit into memory; take a smaller batch, fewer channels or a smaller map"
        ) from error


def make_contenders(
    words: Sequence[LayerWord], features: Float[Tensor, "B C H W"], settings: Settings
) -> tuple[list[Contender], list[Refused]]:
    """Make and try the layers; where every backend was asked for, those that cannot run here are left out.

    Raises:
        WrongArgumentsError: if a layer refuses an option.
        ValueError: if a layer cannot run here, with the reason, or if its kernels compute something wrong.
        ImportError: if a layer needs a library that is missing.
    """
    made, refused = [], []
    for word in words:
        # What a layer says of its options is about what was typed.
        with checking_arguments():
            layer = pooling.create(word.name, channels_of(features), **word.options).to(features.device)
        try:
            backend = backend_of(layer, features)
        except ValueError as error:
            if settings.backend != "all":
                raise
            refused.append(Refused(word.title, str(error)))
            continue
        if backend == "triton":
            check_kernels(layer, features)
        made.append(Contender(word.title, word.name, backend, layer, _tried(word.title, layer, features, settings)))
    return made, refused


def channels_of(features: Float[Tensor, "B C H W"]) -> int:
    """Give the number of channels of a map [B, C, H, W] or of tokens [B, N, C]."""
    return features.shape[1 if features.ndim == 4 else 2]


def _tried(title: str, layer: pooling.PoolingLayer, features: Tensor, settings: Settings) -> Step:
    kind = TrainingStep if settings.backward else InferenceStep
    with failures_told(title, settings.torch_dtype, features.device):
        step = kind(layer, features, settings.torch_dtype)
        step()
    return step
