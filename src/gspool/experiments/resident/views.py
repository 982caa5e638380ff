"""What a model sees of a resident set: crops drawn anew every step in training, the middle in evaluation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from gspool.data import ClassBalancedBatches
from gspool.experiments.resident.crops import centre_boxes, cut_out, draw_crops
from gspool.training.stream import mixed_seed

if TYPE_CHECKING:
    from jaxtyping import Int64, UInt8
    from torch import Tensor

    from gspool.experiments.resident.images import ResidentSet
    from gspool.training import DataConfig

FLIP = 0.5


class BatchPlan:
    """Rows of every step: the batches that `gspool.data.ClassBalancedBatches` plans, epoch by epoch."""

    def __init__(self, images: ResidentSet, data: DataConfig, seed: int) -> None:
        self.batches = ClassBalancedBatches(
            images.labels.cpu(), data.classes_per_batch, data.images_per_class, seed=seed, rank=0, world_size=1
        )
        self.device = images.labels.device
        self._epoch = -1
        self._on_cpu = self._on_device = torch.empty(0)

    def __len__(self) -> int:
        """Count the steps of an epoch."""
        return len(self.batches)

    def rows_of(self, step: int) -> Int64[Tensor, " B"]:
        """Give the positions, in the set, of the images of one step, on the device."""
        position = self._position(step)
        return self._on_device[position]

    def rows_on_cpu_of(self, step: int) -> Int64[Tensor, " B"]:
        """Give the same positions in the memory of the CPU, where `training_view` draws crops."""
        position = self._position(step)
        return self._on_cpu[position]

    def _position(self, step: int) -> int:
        """Plan the epoch of a step, unless it is the one at hand, and give the number of the step in it."""
        epoch, position = divmod(step, len(self.batches))
        if epoch != self._epoch:
            self.batches.set_epoch(epoch)
            self._epoch, self._on_cpu = epoch, self.batches.plan().flatten(1)
            # Waits for the device, once an epoch: whichever stream reads the plan later, it is there.
            self._on_device = self._on_cpu.to(self.device)
        return position


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
    """Give images as one training step sees them; crops and flips are a function of (seed, step) alone.

    Crops are drawn on the CPU and sent in one copy, so the device gets little to do and nothing waits for it, as long
    as ``places`` are on the CPU (`BatchPlan.rows_on_cpu_of`); from a device they are fetched first.
    """
    places = places.cpu()
    rows, device = images.rows_on_cpu[places], images.pixels.device
    if data.transform == "none":
        return images.pixels[sent(rows, device)]
    generator = torch.Generator().manual_seed(mixed_seed(seed, step, 2))
    boxes = draw_crops(images.sizes_on_cpu[places], generator)
    flip = torch.rand(len(rows), generator=generator) < data.transform_options.get("flip", FLIP)
    return cut_out(images.pixels, sent(torch.cat([rows[:, None], boxes, flip[:, None]], dim=1), device), size)


def evaluation_view(
    images: ResidentSet, places: Int64[Tensor, " B"], data: DataConfig, size: int
) -> UInt8[Tensor, "B C S S"]:
    """Give images as evaluation sees them: the middle, or all of it."""
    rows = images.rows[places]
    if data.transform == "none":
        return images.pixels[rows]
    boxes = centre_boxes(images.sizes[rows], size)
    return cut_out(images.pixels, torch.cat([rows[:, None], boxes, torch.zeros_like(rows)[:, None]], dim=1), size)


def sent(values: Tensor, device: torch.device) -> Tensor:
    """Give values of the CPU on a device; from pinned memory the copy does not wait for the steps before it."""
    return values.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else values
