"""Random crops on the device: boxes drawn from a seed on the CPU, cut out and resized where the images are."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from gspool.data.transforms import AREA, RATIO

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int64, UInt8
    from torch import Generator, Tensor

# torchvision draws up to ten boxes and takes the first that fits. So do we, all ten at once.
ATTEMPTS = 10


def draw_crops(sizes: Int64[Tensor, "B 2"], generator: Generator) -> Int64[Tensor, "B 4"]:
    """Draw one box (top, left, height, width) per image: a random share of its area with a random aspect ratio.

    The distribution is that of torchvision's RandomResizedCrop: the first of ten boxes that fits, or the centre of the
    image where none does. Boxes are drawn on the CPU, so that training on any device sees the same ones.

    Example:
        >>> boxes = draw_crops(torch.tensor([[256, 341], [341, 256]]), torch.Generator().manual_seed(0))
        >>> bool((boxes[:, :2] + boxes[:, 2:] <= torch.tensor([[256, 341], [341, 256]])).all())
        True
    """
    uniform = torch.rand(4, len(sizes), ATTEMPTS, generator=generator, dtype=torch.float64)
    # From here on the first axis is (vertical, horizontal).
    frame = sizes.t().double().unsqueeze(-1)
    share = (AREA[0] + (AREA[1] - AREA[0]) * uniform[0]) * frame[0] * frame[1]
    shape = torch.exp(math.log(RATIO[0]) + (math.log(RATIO[1]) - math.log(RATIO[0])) * uniform[1])
    extent = torch.stack([share / shape, share * shape]).sqrt_().round_()
    fits = ((extent > 0) & (extent <= frame)).all(0)
    corner = (uniform[2:] * (frame - extent + 1)).floor_()
    some, first = fits.max(1, keepdim=True)
    box = torch.cat([corner, extent]).gather(2, first.expand(4, -1, 1)).squeeze(2)
    if not some.all():
        box = torch.where(some.t(), box, _largest_centre_box(frame))
    return box.t().long()


def _largest_centre_box(frame: Float[Tensor, "2 B 1"]) -> Float[Tensor, "4 B"]:
    """Return the largest centred box with an allowed aspect ratio."""
    tall, wide = frame
    extent = torch.minimum(frame, torch.stack([(wide / RATIO[0]).round(), (tall * RATIO[1]).round()]))
    return torch.cat([((frame - extent) / 2).floor(), extent]).squeeze(2)


def centre_boxes(sizes: Int64[Tensor, "B 2"], size: int) -> Int64[Tensor, "B 4"]:
    """Return the centred box of ``size`` pixels of each image, for evaluation.

    Example:
        >>> centre_boxes(torch.tensor([[256, 341]]), 227).tolist()
        [[14, 57, 227, 227]]
    """
    # torchvision rounds half pixels to even.
    corner = ((sizes - size).double() / 2).round().long()
    return torch.cat([corner, torch.full_like(corner, size)], dim=1)


def resample(
    pixels: UInt8[Tensor, "B C H W"],
    boxes: Int64[Tensor, "B 4"],
    size: int,
    flip: Bool[Tensor, " B"] | None = None,
) -> UInt8[Tensor, "B C S S"]:
    """Cut a box out of every image and resize it to ``size`` x ``size``, bilinear with antialiasing.

    Along each axis this is a matrix product: row i holds the weights of the pixels around the i-th sample, a triangle
    as wide as the distance to the next sample (at least one pixel), restricted to the pixels of the box. ``flip``
    mirrors left and right by reversing the rows of the horizontal matrix.

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
    columns = pixels.float() @ across.transpose(1, 2)[:, None]
    return (down[:, None] @ columns).round_().clamp_(0, 255).to(torch.uint8)


def _weights(start: Int64[Tensor, " B"], length: Int64[Tensor, " B"], size: int, side: int) -> Float[Tensor, "B S L"]:
    """Return the weights of ``side`` pixels in each of ``size`` samples of the stretch that begins at ``start``."""
    pixel = torch.arange(side, device=start.device, dtype=torch.float32)
    sample = torch.arange(size, device=start.device, dtype=torch.float32) + 0.5
    step = length[:, None].float() / size
    centre = start[:, None] + sample * step
    reach = step.clamp(min=1.0)[..., None]
    weights = (1 - (pixel + 0.5 - centre[..., None]).abs() / reach).clamp_(min=0)
    inside = (pixel >= start[:, None]) & (pixel < (start + length)[:, None])
    weights = weights * inside[:, None]
    return weights / weights.sum(2, keepdim=True)


def shift_and_flip(
    pixels: UInt8[Tensor, "B C H W"], generator: Generator, shift: int = 4, flip: float = 0.5
) -> UInt8[Tensor, "B C H W"]:
    """Move every image by up to ``shift`` pixels (black enters at the edge) and mirror a share ``flip`` of them.

    Numbers are drawn by ``generator`` on its own device; a CPU generator gives the same images on every device.

    Example:
        >>> images = torch.randint(256, (5, 3, 32, 32), dtype=torch.uint8)
        >>> shift_and_flip(images, torch.Generator().manual_seed(0)).shape
        torch.Size([5, 3, 32, 32])
    """
    count, _, height, width = pixels.shape
    device = pixels.device
    corner = torch.randint(2 * shift + 1, (2, count, 1), generator=generator, device=generator.device).to(device)
    mirrored = (torch.rand(count, 1, generator=generator, device=generator.device) < flip).to(device)
    across = torch.arange(width, device=device).expand(count, -1)
    columns = corner[1] + torch.where(mirrored, width - 1 - across, across)
    rows = corner[0] + torch.arange(height, device=device)
    image = torch.arange(count, device=device)[:, None, None]
    padded = F.pad(pixels, (shift,) * 4).permute(0, 2, 3, 1)
    return padded[image, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)
