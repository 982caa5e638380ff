"""A whole network around the layers: a backbone with random weights, which takes as long as with any others."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from gspool.bench.steps import HALF, InferenceStep, Step, TrainingStep, failures_told

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor, nn

    from gspool.bench.settings import Settings
    from gspool.pooling import PoolingLayer


class Network(NamedTuple):
    """A backbone, a batch of images for it, and the feature map that it makes of them, in its own layout and dtype."""

    name: str
    backbone: nn.Module
    images: Float[Tensor, "B 3 H W"]
    features: Float[Tensor, "B C h w"]

    def step(self, layer: PoolingLayer, settings: Settings) -> Step:
        """Make the step of the network with a layer behind its backbone, which all layers share."""
        return _step(torch.nn.Sequential(self.backbone, layer), self.images, settings)


def make_network(name: str, settings: Settings, device: torch.device) -> Network:
    """Make a backbone and run it once.

    Raises:
        ValueError: if there is no such backbone, or it cannot run with these images, type or memory.
        ImportError: if what `gspool[train]` brings is missing.
    """
    # Only here: everything else needs torch alone.
    from gspool.models import create_backbone

    backbone = create_backbone(name)
    height, width = settings.pixels or backbone.pixels.crop
    backbone.to(device).to(memory_format=settings.memory_format)
    drawn = torch.randn(settings.batch, 3, height, width, generator=torch.Generator().manual_seed(0))
    # Mixed precision takes images as they are; the first convolution rounds them.
    mixed = settings.backward and settings.torch_dtype in HALF
    dtype = torch.float32 if mixed else settings.torch_dtype
    images = drawn.to(device, dtype, memory_format=settings.memory_format)
    with failures_told(name, settings.torch_dtype, device):
        step = _step(backbone, images, settings)
        step()
        return Network(name, backbone, images, step.forward().detach())


def _step(module: nn.Module, images: Float[Tensor, "B 3 H W"], settings: Settings) -> Step:
    if settings.backward:
        return TrainingStep(module, images, settings.torch_dtype, inputs_learn=False)
    return InferenceStep(module, images, settings.torch_dtype)
