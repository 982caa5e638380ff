"""Images of the size a network asks for, and the run on them that leaves no trace."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn

from gspool.models.replace.watch import Watch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from gspool.models.replace.observation import Observation

USUAL_SIZE = 224


class Look(NamedTuple):
    """Images that a network takes, and what it did with them."""

    images: Tensor
    seen: Observation


def first_look(model: nn.Module, example: Tensor | None, named: str | None = None) -> Look:
    """Run the network on the user's example, or on two images of noise in the size that it asks for.

    Raises:
        ValueError: if the example is no floating point batch, or the network does not take it or has no real weights.
    """
    like = device_and_dtype(model)
    if like["device"].type == "meta":
        raise ValueError("the network is on the meta device and computes nothing: give it real weights, to_empty(...)")
    if example is not None:
        if not isinstance(example, torch.Tensor) or example.ndim < 3 or not example.is_floating_point():
            came = [getattr(example, "dtype", type(example).__name__), tuple(getattr(example, "shape", ()))]
            raise ValueError(f"example must be a floating point batch that the network takes, [B, 3, H, W], got {came}")
        return Look(example.to(**like), watch(model, example.to(**like), named))
    refusals = []
    for size in image_sizes(model):
        images = torch.randn(2, *size, generator=torch.Generator().manual_seed(0)).to(**like)
        try:
            return Look(images, watch(model, images, named))
        except ValueError as error:
            refusals.append(error)
    raise refusals[0]


def image_sizes(model: nn.Module) -> list[tuple[int, int, int]]:
    """Read the image size a network asks for from where timm and torchvision write it; 224 pixels if it does not say.

    The channels are those of the first convolution. Some stems fold blocks of pixels into channels before it, so three
    channels are the second guess.

    >>> image_sizes(nn.Conv2d(1, 4, 3))
    [(1, 224, 224), (3, 224, 224)]
    """
    settings = getattr(model, "pretrained_cfg", None) or {}
    written = getattr(getattr(model, "patch_embed", None), "img_size", None) or getattr(model, "image_size", None)
    size = written or tuple(settings.get("input_size") or ())[1:] or USUAL_SIZE
    height, width = (size, size) if isinstance(size, int) else size[-2:]
    first = next((module for module in model.modules() if isinstance(module, nn.Conv2d)), None)
    channels = 3 if first is None else first.in_channels
    return [(guess, height, width) for guess in dict.fromkeys((channels, 3))]


def device_and_dtype(model: nn.Module) -> dict[str, Any]:
    """Tell where a network lives and in which precision, by its first floating point parameter."""
    parameters = (p for p in model.parameters() if p.is_floating_point())
    first = next(parameters, torch.empty(0))
    return {"device": first.device, "dtype": first.dtype}


def watch(model: nn.Module, images: Tensor, named: str | None = None) -> Observation:
    """Run the network in evaluation mode and note what happens; batch statistics and training flags stay as they are.

    Raises:
        ValueError: if the network does not take these images, or gives numbers that are not finite.
    """
    with evaluating(model):
        try:
            seen = Watch(model, named).run(model, images)
        except Exception as error:  # a network may raise anything at an image it does not like
            raise ValueError(
                f"{type(model).__name__} did not run on images {tuple(images.shape)}: {error}. "
                "Pass a batch that it takes as example=..."
            ) from error
    if not all(bool(output.isfinite().all()) for output in seen.outputs):
        raise ValueError(
            f"{type(model).__name__} gave numbers that are not finite on images {tuple(images.shape)}: "
            "pass a batch of real, normalised images as example=..."
        )
    return seen


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Set evaluation mode, and give every module its own flag back: frozen batch norms may differ from the rest."""
    flags = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in flags:
            module.training = training
