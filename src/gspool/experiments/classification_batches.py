"""What a classifier sees: how it is trained, batches on the device, and training images that nobody learns from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader

from gspool.data import evaluation_transform, train_transform
from gspool.data.image_source import ArrayImages, SelectedImages
from gspool.data.loading import loading_processes
from gspool.experiments.cifar_pretraining import shifted_and_mirrored
from gspool.experiments.resident import load_resident

if TYPE_CHECKING:
    from torch import Tensor

    from gspool.data import ImageSet


@dataclass(frozen=True)
class ClassifierSettings:
    """How one classifier is made and trained; ``captured``: whether a GPU replays steps on images in its memory."""

    backbone: str
    pooling: str
    pooling_options: dict[str, Any] = field(default_factory=dict)
    backbone_options: dict[str, Any] = field(default_factory=dict)
    epochs: int = 30
    batch_size: int = 256
    lr: float = 0.2
    weight_decay: float = 5e-4
    precision: str = "32-true"
    workers: int = 0
    seed: int = 0
    captured: bool = True


class Batches:
    """Batches of a data set on a device: from its memory where the set is an array, else from loaders."""

    def __init__(self, images: ImageSet, settings: ClassifierSettings, size: int, device: str) -> None:
        source = images.images.source if isinstance(images.images, SelectedImages) else images.images
        self.images, self.settings, self.size, self.device = images, settings, size, device
        in_memory = isinstance(source, ArrayImages)
        self.resident = load_resident(images, device, shorter_side=None) if in_memory else None

    def training(self, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Give an epoch of augmented batches of one size."""
        settings = self.settings
        seed = 1_000 * settings.seed + epoch
        if self.resident is None:
            seen = self.images.with_transform(train_transform(self.size), seed=seed)
            yield from self._loaded(seen, shuffle=True, seed=seed)
            return
        generator = torch.Generator(self.device).manual_seed(seed)
        order = torch.randperm(len(self.resident), generator=generator, device=self.device)
        for rows in order.split(settings.batch_size):
            if len(rows) == settings.batch_size or len(order) < settings.batch_size:
                yield shifted_and_mirrored(self.resident.pixels[rows], generator), self.resident.labels[rows]

    def evaluation(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Give every image once, in order."""
        if self.resident is None:
            yield from self._loaded(self.images.with_transform(evaluation_transform(self.size)), shuffle=False, seed=0)
            return
        yield from zip(self.resident.pixels.split(1_024), self.resident.labels.split(1_024), strict=True)

    def _loaded(self, images: ImageSet, shuffle: bool, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
        loader: Any = DataLoader(
            images,
            self.settings.batch_size,
            shuffle=shuffle,
            drop_last=shuffle,
            num_workers=loading_processes(self.settings.workers),
            pin_memory=self.device != "cpu",
            generator=torch.Generator().manual_seed(seed),
        )
        for pixels, labels in loader:
            yield pixels.to(self.device, non_blocking=True), labels.to(self.device, non_blocking=True)


def hold_out(images: ImageSet, share: float, seed: int = 0) -> tuple[ImageSet, ImageSet]:
    """Take a share of every class away, at least one image: what is learned from, and what choices are made on.

    Raises:
        ValueError: if a class has a single image.

    Example:
        >>> from gspool import data
        >>> learned, held_out = hold_out(data.create("glyphs", split="train", images_per_class=10), 0.2)
        >>> len(learned) == 4 * len(held_out)
        True
    """
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(images), generator=generator)
    kept, taken = [], []
    for label in range(images.num_classes):
        own = order[images.labels[order] == label]
        if len(own) < 2:
            raise ValueError(
                f"class {images.class_names[label]!r} has {len(own)} training images; one to learn from and one to "
                "hold out are needed"
            )
        count = max(round(share * len(own)), 1)
        taken.append(own[:count])
        kept.append(own[count:])
    return images.subset(torch.cat(kept).sort().values), images.subset(torch.cat(taken).sort().values)
