"""A tiny stand-in for a benchmark: stripes whose direction is the class, so that everything can be tried in seconds."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from gspool.experiments.resident import ResidentSet
from gspool.training import TrainConfig

TRAIN_CLASSES, TEST_CLASSES, SIDE = 12, 6, 16


class Ground(NamedTuple):
    """The images of all training classes and the test images, on one device."""

    train: ResidentSet
    test: ResidentSet


def striped(classes: int, per_class: int, size: int = SIDE, seed: int = 0) -> ResidentSet:
    """Draw noisy stripes, as many directions as there are classes.

    Example:
        >>> striped(3, 2).pixels.shape
        torch.Size([6, 3, 16, 16])
    """
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(classes).repeat_interleave(per_class)
    place = 12 * torch.arange(size) / size
    angle = (labels * math.pi / classes)[:, None, None]
    phase = 2 * math.pi * torch.rand(len(labels), 1, 1, generator=generator)
    wave = torch.sin(place[None, None, :] * angle.cos() + place[None, :, None] * angle.sin() + phase)
    noise = torch.rand(len(labels), 3, size, size, generator=generator)
    pixels = (80 * (wave[:, None] + 1) + 90 * noise).clamp(0, 255).to(torch.uint8)
    return ResidentSet.of(pixels, labels)


def stand_in(device: str = "cpu") -> Ground:
    """Give the images of the tiny version."""
    return Ground(striped(TRAIN_CLASSES, 5).to(device), striped(TEST_CLASSES, 4, seed=1).to(device))


def made_tiny(settings: TrainConfig) -> TrainConfig:
    """Shrink a run to a few steps of a network two channels wide; what it is about stays."""
    settings.model.backbone, settings.model.backbone_options = "small_cnn", {"width": 2}
    settings.model.dim = 8
    options = settings.model.pooling_options
    options.update({name: value for name, value in (("prototypes", 4), ("warm_start", 8)) if options.get(name)})
    settings.data.transform = "none"
    settings.data.classes_per_batch, settings.data.images_per_class = 4, 2
    settings.trainer.max_steps, settings.trainer.evaluate_every = 4, 2
    settings.optimiser.lr = 1e-3
    return settings
