"""The paper's transforms (Supp. "Data augmentation") for uint8 images; normalisation is part of the model."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

if TYPE_CHECKING:
    from jaxtyping import UInt8
    from torch import Tensor

    from gspool.data.decode import Interpolation

RESIZE = 256
CROP = 227
AREA = (0.16, 1.0)
RATIO = (3 / 4, 4 / 3)


def train_transform(
    size: int = CROP,
    *,
    resize: int | None = RESIZE,
    area: tuple[float, float] = AREA,
    ratio: tuple[float, float] = RATIO,
    flip: float = 0.5,
    auto_augment: bool = False,
) -> Callable[[Any], Any]:
    """Return the training transform: shorter side to 256, random resized crop to 227 x 227, horizontal flip.

    The paper crops "between 40 and 256" and cites Musgrave et al. (2020); both reference implementations draw an
    *area* between 0.16 (= 40/256) and 1 of the image, with an aspect ratio between 3/4 and 4/3, and so do we.
    ``resize=None`` omits the first step, for images that a cache already holds at that size. ``auto_augment`` adds
    AutoAugment with its ImageNet policy (Cubuk et al. 2019), as EfficientNets are trained.

    Raises:
        ValueError: if a size is not positive, or a range or probability is not valid.

    Example:
        >>> import torch
        >>> image = torch.zeros(3, 300, 400, dtype=torch.uint8)
        >>> augmented = train_transform()(image)
        >>> augmented.dtype, tuple(augmented.shape)
        (torch.uint8, (3, 227, 227))
    """
    from torchvision.transforms import v2

    _check_sizes(size, resize)
    for name, (low, high) in (("area", area), ("ratio", ratio)):
        if not 0 < low <= high or (name == "area" and high > 1):
            raise ValueError(
                f"{name} is a range of positive numbers{' up to 1' if name == 'area' else ''}, got {(low, high)}"
            )
    if not 0 <= flip <= 1:
        raise ValueError(f"flip is a probability and must lie in [0, 1], got {flip}")
    first = [] if resize is None else [v2.Resize(resize, antialias=True)]
    return v2.Compose(
        [
            *first,
            v2.RandomResizedCrop(size, scale=area, ratio=ratio, antialias=True),
            v2.RandomHorizontalFlip(flip),
            *([v2.AutoAugment()] if auto_augment else []),
        ]
    )


def evaluation_transform(
    size: int = CROP, *, resize: int | None = RESIZE, interpolation: Interpolation = "bilinear"
) -> Callable[[Any], Any]:
    """Return the evaluation transform: shorter side to 256, centre crop of 227 x 227.

    Raises:
        ValueError: if a size is not positive, or the crop is larger than the resized image.

    Example:
        >>> import torch
        >>> tuple(evaluation_transform()(torch.zeros(3, 300, 400, dtype=torch.uint8)).shape)
        (3, 227, 227)
    """
    from torchvision.transforms import InterpolationMode, v2

    _check_sizes(size, resize)
    if resize is not None and resize < size:
        raise ValueError(f"the crop ({size}) does not fit into the resized image ({resize})")
    first = [] if resize is None else [v2.Resize(resize, InterpolationMode(interpolation), antialias=True)]
    return v2.Compose([*first, v2.CenterCrop(size)])


class ShiftAndFlip:
    """Augment images of 32 or 64 pixels: a random shift by up to ``shift`` pixels and a random horizontal flip.

    Use ``flip=0`` where left and right matter, as for letters.

    Raises:
        ValueError: if the shift is negative or ``flip`` is not a probability.

    Example:
        >>> import torch
        >>> tuple(ShiftAndFlip()(torch.zeros(3, 32, 32, dtype=torch.uint8)).shape)
        (3, 32, 32)
    """

    def __init__(self, shift: int = 4, flip: float = 0.5) -> None:
        if shift < 0 or not 0 <= flip <= 1:
            raise ValueError(f"shift must not be negative and flip must lie in [0, 1], got {shift} and {flip}")
        self.shift = shift
        self.flip = flip

    def __call__(self, image: UInt8[Tensor, "3 H W"]) -> UInt8[Tensor, "3 H W"]:
        """Augment one image, using torch's global generator."""
        height, width = image.shape[-2:]
        padded = functional.pad(image, [self.shift] * 4)
        top, left = torch.randint(2 * self.shift + 1, (2,)).tolist()
        moved = padded[..., top : top + height, left : left + width]
        return moved.flip(-1) if torch.rand(()) < self.flip else moved


def _check_sizes(size: int, resize: int | None) -> None:
    for name, value in (("size", size), ("resize", resize)):
        if value is not None and value < 1:
            raise ValueError(f"{name} is a length in pixels and must be positive, got {value}")
