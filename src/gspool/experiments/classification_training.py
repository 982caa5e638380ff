"""Train a classifier whose pooling layer is the only thing that changes, and look at the features it pools."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

from gspool import pooling
from gspool.data import evaluation_transform, train_transform
from gspool.data.image_source import ArrayImages, SelectedImages
from gspool.evaluation import retrieval_metrics
from gspool.experiments.cifar_pretraining import shifted_and_mirrored
from gspool.experiments.classification_lda import DiscriminantAnalysis
from gspool.experiments.resident import load_resident
from gspool.experiments.resident.evaluation import autocast, channels_last
from gspool.models import create_backbone
from gspool.models.normalisation import PixelNormalisation
from gspool.training.embed import relative_entropy

if TYPE_CHECKING:
    from jaxtyping import Float, UInt8
    from torch import Tensor

    from gspool.data import ImageSet

LDA_DIM = 512


@dataclass(frozen=True)
class ClassifierSettings:
    """How one classifier is made and trained."""

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


class Classified(NamedTuple):
    """Top-1 accuracy, and the geometry of the pooled features after LDA: P@1 and MAP@R; all in [0, 1]."""

    accuracy: float
    metrics: dict[str, float]
    lda_dim: int
    entropy: float | None
    seconds: float


class PooledClassifier(nn.Module):
    """A backbone, a pooling layer on its own features, and a linear layer."""

    def __init__(self, settings: ClassifierSettings, num_classes: int) -> None:
        super().__init__()
        self.backbone = create_backbone(settings.backbone, **settings.backbone_options)
        self.normalisation = PixelNormalisation(self.backbone.pixels)
        self.pool = pooling.create(settings.pooling, dim=self.backbone.channels, **settings.pooling_options)
        self.linear = nn.Linear(self.pool.out_dim, num_classes)

    def features(self, images: UInt8[Tensor, "B 3 H W"]) -> Any:
        """Pool the feature map."""
        return self.pool.pool(self.backbone(self.normalisation(images)))

    def forward(self, images: UInt8[Tensor, "B 3 H W"]) -> Float[Tensor, "B K"]:
        """Give the logits."""
        return self.linear(self.features(images).pooled)


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
            num_workers=self.settings.workers,
            pin_memory=self.device != "cpu",
            generator=torch.Generator().manual_seed(seed),
        )
        for pixels, labels in loader:
            yield pixels.to(self.device, non_blocking=True), labels.to(self.device, non_blocking=True)


def train_classifier(train: ImageSet, test: ImageSet, settings: ClassifierSettings, device: str) -> Classified:
    """Train by one-cycle SGD, measure accuracy, then P@1 and MAP@R of the test features after LDA (Supp. 1.2).

    LDA is fitted on the training images as evaluation sees them, and gives 512 directions, or as many as there are:
    one less than classes.
    """
    started = time.perf_counter()
    with torch.random.fork_rng():
        torch.manual_seed(settings.seed)
        network = PooledClassifier(settings, train.num_classes).to(device)
    if torch.device(device).type == "cuda":
        network = network.to(memory_format=torch.channels_last)
    size = network.backbone.pixels.crop[0]
    learned, judged = Batches(train, settings, size, device), Batches(test, settings, size, device)
    steps = max(len(train) // settings.batch_size, 1)
    optimiser = torch.optim.SGD(
        network.parameters(), settings.lr, momentum=0.9, nesterov=True, weight_decay=settings.weight_decay
    )
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimiser, settings.lr, total_steps=settings.epochs * steps, pct_start=0.2
    )
    network.train()
    for epoch in range(settings.epochs):
        for pixels, labels in learned.training(epoch):
            with autocast(pixels.device, settings.precision):
                logits = network(channels_last(pixels))
            loss = F.cross_entropy(logits.float(), labels)
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            optimiser.step()
            schedule.step()
    return _judge(network.eval(), learned, judged, settings, train.num_classes, started)


@torch.no_grad()
def _judge(
    network: PooledClassifier,
    learned: Batches,
    judged: Batches,
    settings: ClassifierSettings,
    num_classes: int,
    started: float,
) -> Classified:
    def pooled(pixels: Tensor) -> Any:
        with autocast(pixels.device, settings.precision):
            return network.features(channels_last(pixels))

    analysis = DiscriminantAnalysis(num_classes, network.pool.out_dim, device=learned.device)
    for pixels, labels in learned.evaluation():
        analysis.add(pooled(pixels).pooled.float(), labels)
    directions = analysis.directions(LDA_DIM).float()
    right, vectors, classes, entropies = 0, [], [], []
    for pixels, labels in judged.evaluation():
        found = pooled(pixels)
        right += int((network.linear(found.pooled.float()).argmax(1) == labels).sum())
        vectors.append(found.pooled.float() @ directions)
        classes.append(labels)
        if found.weights is not None:
            entropies.append(relative_entropy(found.weights.float()))
    metrics = retrieval_metrics(torch.cat(vectors), torch.cat(classes), ks=(1,))
    return Classified(
        accuracy=right / len(judged.images),
        metrics={name: metrics[name] for name in ("p@1", "map@r")},
        lda_dim=directions.shape[1],
        entropy=float(torch.cat(entropies).double().mean()) if entropies else None,
        seconds=time.perf_counter() - started,
    )
