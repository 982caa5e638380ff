"""The paper's crops: boxes drawn from a seed on the CPU, cut out and resized where the images are."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from gspool.data.transforms import AREA, RATIO
from gspool.functional.kernels.dispatch import TRITON_IS_INSTALLED

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
    image where none does. All of it happens on the CPU, so that training on any device sees the same boxes, and in few
    operations, because each takes longer to start than to make.

    Example:
        >>> boxes = draw_crops(torch.tensor([[256, 341], [341, 256]]), torch.Generator().manual_seed(0))
        >>> bool((boxes[:, :2] + boxes[:, 2:] <= torch.tensor([[256, 341], [341, 256]])).all())
        True
    """
    uniform = torch.rand(4, len(sizes), ATTEMPTS, generator=generator, dtype=torch.float64)
    # Pairs of the vertical and the horizontal axis, in this order, from here on.
    frame = sizes.t().double().unsqueeze(-1)
    share = (area[0] + (area[1] - area[0]) * uniform[0]) * frame[0] * frame[1]
    shape = torch.exp(math.log(ratio[0]) + (math.log(ratio[1]) - math.log(ratio[0])) * uniform[1])
    extent = torch.stack([share / shape, share * shape]).sqrt_().round_()
    fits = ((extent > 0) & (extent <= frame)).all(0)
    corner = (uniform[2:] * (frame - extent + 1)).floor_()
    some, first = fits.max(1, keepdim=True)
    box = torch.cat([corner, extent]).gather(2, first.expand(4, -1, 1)).squeeze(2)
    if not some.all():
        box = torch.where(some.t(), box, _middle(frame, ratio))
    return box.t().long()


def _middle(frame: Float[Tensor, "2 B 1"], ratio: tuple[float, float]) -> Float[Tensor, "4 B"]:
    """Give the largest box in the middle whose shape is allowed."""
    tall, wide = frame
    extent = torch.minimum(frame, torch.stack([(wide / ratio[0]).round(), (tall * ratio[1]).round()]))
    return torch.cat([((frame - extent) / 2).floor(), extent]).squeeze(2)


def centre_boxes(sizes: Int64[Tensor, "B 2"], size: int) -> Int64[Tensor, "B 4"]:
    """Give the box of ``size`` pixels in the middle of each image, for evaluation.

    Example:
        >>> centre_boxes(torch.tensor([[256, 341]]), 227).tolist()
        [[14, 57, 227, 227]]
    """
    # Half pixels go to the even side, as torchvision's rounding puts them.
    corner = ((sizes - size).double() / 2).round().long()
    return torch.cat([corner, torch.full_like(corner, size)], dim=1)


def cut_out(pixels: UInt8[Tensor, "P C H W"], cuts: Int64[Tensor, "B 6"], size: int) -> UInt8[Tensor, "B C S S"]:
    """Cut boxes out of some of many images and resize each as `resample` does.

    A line of ``cuts`` is the number of an image, the top, left, height and width of a box within its frame, and 1 where
    left and right change places. Colour images on a GPU are cropped by one kernel that reads them where they lie, if
    Triton is installed. It keeps the digits of float32 and sums in another order: a pixel halfway between two of 255
    levels may go to the other one.

    Example:
        >>> pictures = torch.arange(32, dtype=torch.uint8).view(2, 1, 4, 4)
        >>> cut_out(pictures, torch.tensor([[1, 1, 1, 2, 2, 1]]), 2)[0, 0].tolist()
        [[22, 21], [26, 25]]
    """
    if TRITON_IS_INSTALLED and pixels.is_cuda and pixels.dtype == torch.uint8 and pixels.shape[1] == 3:
        from gspool.experiments.resident.kernels.crop import crop_rows

        return crop_rows(pixels, cuts, size)
    return resample(pixels[cuts[:, 0]], cuts[:, 1:5], size, cuts[:, 5] != 0)


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
    columns = pixels.float() @ across.transpose(1, 2)[:, None]
    return (down[:, None] @ columns).round_().clamp_(0, 255).to(torch.uint8)


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
