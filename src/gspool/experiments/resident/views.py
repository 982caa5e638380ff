"""What a model sees of a resident set: crops drawn anew every step in training, the middle in evaluation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from gspool.data import ClassBalancedBatches
from gspool.experiments.resident.crops import centre_boxes, draw_crops, resample
from gspool.training.stream import mixed_seed

if TYPE_CHECKING:
    from jaxtyping import Int64, UInt8
    from torch import Tensor

    from gspool.experiments.resident.images import ResidentSet
    from gspool.training import DataConfig

FLIP = 0.5


class BatchPlan:
    """Rows of every step on the device: the batches that `gspool.data.ClassBalancedBatches` plans, epoch by epoch."""

    def __init__(self, images: ResidentSet, data: DataConfig, seed: int) -> None:
        self.batches = ClassBalancedBatches(
            images.labels.cpu(), data.classes_per_batch, data.images_per_class, seed=seed, rank=0, world_size=1
        )
        self.device = images.labels.device
        self._epoch, self._plan = -1, torch.empty(0)

    def __len__(self) -> int:
        """Count the steps of an epoch."""
        return len(self.batches)

    def rows_of(self, step: int) -> Int64[Tensor, " B"]:
        """Give the positions, in the set, of the images of one step."""
        epoch, position = divmod(step, len(self.batches))
        if epoch != self._epoch:
            self.batches.set_epoch(epoch)
            self._epoch, self._plan = epoch, self.batches.plan().flatten(1).to(self.device)
        return self._plan[position]


def check_view(images: ResidentSet, data: DataConfig) -> None:
    """Refuse, before any training, images that the transform cannot bring to one size.

    Raises:
        ValueError: if the transform is not one of "crop" and "none", or images of several sizes are not cropped.
    """
    if data.transform not in ("crop", "none"):
        raise ValueError(f"resident images are seen through the transform 'crop' or 'none', got {data.transform!r}")
    frame = torch.tensor(images.pixels.shape[-2:], device=images.sizes.device)
    if data.transform == "none" and images.pixels.ndim == 4 and not bool((images.sizes[images.rows] == frame).all()):
        raise ValueError("images of several sizes need the transform 'crop' (data.transform), which makes one of them")


def training_view(
    images: ResidentSet, places: Int64[Tensor, " B"], data: DataConfig, size: int, seed: int, step: int
) -> UInt8[Tensor, "B C S S"]:
    """Give images as one training step sees them; crops and flips are a function of (seed, step) alone."""
    rows = images.rows[places]
    if data.transform == "none":
        return images.pixels[rows]
    generator = torch.Generator().manual_seed(mixed_seed(seed, step, 2))
    boxes = draw_crops(images.sizes[rows], generator)
    flip = torch.rand(len(rows), generator=generator) < data.transform_options.get("flip", FLIP)
    return resample(images.pixels[rows], boxes, size, flip.to(rows.device, non_blocking=True))


def evaluation_view(
    images: ResidentSet, places: Int64[Tensor, " B"], data: DataConfig, size: int
) -> UInt8[Tensor, "B C S S"]:
    """Give images as evaluation sees them: the middle, or all of it."""
    rows = images.rows[places]
    if data.transform == "none":
        return images.pixels[rows]
    return resample(images.pixels[rows], centre_boxes(images.sizes[rows], size), size)
