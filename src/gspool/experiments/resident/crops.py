"""The paper's crops on the device: boxes drawn from a seed, each resampled by two small matrix products."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

import torch

from gspool.data.transforms import AREA, RATIO

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int64, UInt8
    from torch import Generator, Tensor

# torchvision draws up to ten boxes and takes the first that fits; so do we, all ten at once.
ATTEMPTS = 10


def draw_crops(
    sizes: Int64[Tensor, "B 2"],
    generator: Generator,
    area: tuple[float, float] = AREA,
    ratio: tuple[float, float] = RATIO,
) -> Int64[Tensor, "B 4"]:
    """Draw one box (top, left, height, width) an image: a random share of its area, of a random shape.

    The distribution is that of torchvision's RandomResizedCrop: of ten boxes the first that fits, and the middle of the
    image where none does. Numbers are drawn by ``generator``, on the CPU, so that every device sees the same boxes.

    Example:
        >>> boxes = draw_crops(torch.tensor([[256, 341], [341, 256]]), torch.Generator().manual_seed(0))
        >>> bool((boxes[:, :2] + boxes[:, 2:] <= torch.tensor([[256, 341], [341, 256]])).all())
        True
    """
    count, device = len(sizes), sizes.device
    drawn = torch.rand(4, count, ATTEMPTS, generator=generator, dtype=torch.float64)
    # From pinned memory the copy does not wait for the steps before this one.
    uniform = (drawn.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else drawn).unbind()
    tall, wide = sizes.double().unsqueeze(-1).unbind(1)
    share = (area[0] + (area[1] - area[0]) * uniform[0]) * tall * wide
    shape = torch.exp(math.log(ratio[0]) + (math.log(ratio[1]) - math.log(ratio[0])) * uniform[1])
    width, height = (share * shape).sqrt().round(), (share / shape).sqrt().round()
    fits = (width > 0) & (width <= wide) & (height > 0) & (height <= tall)
    top, left = (uniform[2] * (tall - height + 1)).floor(), (uniform[3] * (wide - width + 1)).floor()
    first = fits.double().argmax(1, keepdim=True)
    box = torch.stack([each.gather(1, first).squeeze(1) for each in (top, left, height, width)], dim=1)
    return torch.where(fits.any(1, keepdim=True), box, _middle(tall, wide, ratio)).long()


def _middle(tall: Float[Tensor, "B 1"], wide: Float[Tensor, "B 1"], ratio: tuple[float, float]) -> Float[Tensor, "B 4"]:
    """Give the largest box in the middle whose shape is allowed."""
    height = torch.minimum(tall, (wide / ratio[0]).round())
    width = torch.minimum(wide, (tall * ratio[1]).round())
    return torch.cat([((tall - height) / 2).floor(), ((wide - width) / 2).floor(), height, width], dim=1)


def centre_boxes(sizes: Int64[Tensor, "B 2"], size: int) -> Int64[Tensor, "B 4"]:
    """Give the box of ``size`` pixels in the middle of each image, for evaluation.

    Example:
        >>> centre_boxes(torch.tensor([[256, 341]]), 227).tolist()
        [[14, 57, 227, 227]]
    """
    # Half pixels go to the even side, as torchvision's rounding puts them.
    corner = ((sizes - size).double() / 2).round().long()
    return torch.cat([corner, torch.full_like(corner, size)], dim=1)


def resample(
    pixels: UInt8[Tensor, "B C H W"],
    boxes: Int64[Tensor, "B 4"],
    size: int,
    flip: Bool[Tensor, " B"] | None = None,
) -> UInt8[Tensor, "B C S S"]:
    """Cut a box out of every image and resize it to ``size`` x ``size``, bilinear with antialiasing.

    Along each axis that is a matrix: row i holds the weights of the pixels around the i-th sample, a triangle as wide
    as the sample is apart from the next (never narrower than a pixel), over the pixels of the box alone. ``flip``
    mirrors left and right, which turns the order of the columns.

    Example:
        >>> picture = torch.arange(16, dtype=torch.uint8).view(1, 1, 4, 4)
        >>> resample(picture, torch.tensor([[1, 1, 2, 2]]), 2)[0, 0].tolist()
        [[5, 6], [9, 10]]
    """
    top, left, height, width = boxes.unbind(1)
    down = _weights(top, height, size, pixels.shape[2])
    across = _weights(left, width, size, pixels.shape[3])
    if flip is not None:
        across = torch.where(flip[:, None, None], across.flip(1), across)
    # One product a colour: the second axis of pixels, then the first.
    with tensor_cores() if pixels.is_cuda else nullcontext():
        columns = pixels.float() @ across.transpose(1, 2)[:, None]
        return (down[:, None] @ columns).round_().clamp_(0, 255).to(torch.uint8)


@contextmanager
def tensor_cores() -> Iterator[None]:
    """Let a GPU round the factors of products to TF32, which it multiplies several times as fast.

    Pixels and weights of 0 and 1 stay exact, so that a box of the wanted size is copied; where a box is resized, some
    pixels are off by one of 255.
    """
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _weights(start: Int64[Tensor, " B"], length: Int64[Tensor, " B"], size: int, side: int) -> Float[Tensor, "B S L"]:
    """Give the weights of ``side`` pixels in each of ``size`` samples of the stretch from ``start`` on."""
    pixel = torch.arange(side, device=start.device, dtype=torch.float32)
    sample = torch.arange(size, device=start.device, dtype=torch.float32) + 0.5
    step = length[:, None].float() / size
    centre = start[:, None] + sample * step
    reach = step.clamp(min=1.0)[..., None]
    weights = (1 - (pixel + 0.5 - centre[..., None]).abs() / reach).clamp_(min=0)
    inside = (pixel >= start[:, None]) & (pixel < (start + length)[:, None])
    weights = weights * inside[:, None]
    return weights / weights.sum(2, keepdim=True)
