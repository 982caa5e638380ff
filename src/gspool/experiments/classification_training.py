"""Train a classifier whose pooling layer is the only thing that changes, and look at the features it pools."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn

from gspool import pooling
from gspool.evaluation import retrieval_metrics
from gspool.experiments.captured_step import CaptureFailedError
from gspool.experiments.classification_batches import Batches, ClassifierSettings
from gspool.experiments.classification_lda import DiscriminantAnalysis
from gspool.experiments.classification_steps import ClassifierSteps
from gspool.experiments.crew import steps_under_way
from gspool.experiments.resident.evaluation import autocast, channels_last
from gspool.models import create_backbone
from gspool.models.normalisation import PixelNormalisation
from gspool.training.embed import relative_entropy

if TYPE_CHECKING:
    from jaxtyping import Float, UInt8
    from torch import Tensor

    from gspool.data import ImageSet

LDA_DIM = 512


class Geometry(NamedTuple):
    """Top-1 accuracy on test images, P@1 and MAP@R of their features after LDA, and the entropy of the weights."""

    accuracy: float
    metrics: dict[str, float]
    lda_dim: int
    entropy: float | None


class Classified(NamedTuple):
    """Accuracy on held-out training images, then what `Geometry` holds; shares lie in [0, 1]."""

    validation: float
    accuracy: float
    metrics: dict[str, float]
    lda_dim: int
    entropy: float | None
    seconds: float
    captured: bool


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


def train_classifier(
    train: ImageSet, held_out: ImageSet, test: ImageSet, settings: ClassifierSettings, device: str
) -> Classified:
    """Train by one-cycle SGD, measure accuracy, then P@1 and MAP@R of the test features after LDA (Supp. 1.2).

    LDA is fitted on the training images as evaluation sees them, and gives 512 directions, or as many as there are:
    one less than classes.
    """
    started = time.perf_counter()
    size = PooledClassifier(settings, train.num_classes).backbone.pixels.crop[0]
    learned, judged = Batches(train, settings, size, device), Batches(test, settings, size, device)
    can_be_captured = settings.captured and learned.resident is not None
    try:
        network, captured = _learn(learned, settings, train.num_classes, can_be_captured)
    except CaptureFailedError:
        network, captured = _learn(learned, settings, train.num_classes, captured=False)
    validation = _accuracy(network.eval(), Batches(held_out, settings, size, device), settings)
    geometry = _judge(network, learned, judged, settings, train.num_classes)
    return Classified(validation, *geometry, time.perf_counter() - started, captured)


def _learn(
    learned: Batches, settings: ClassifierSettings, num_classes: int, captured: bool
) -> tuple[PooledClassifier, bool]:
    with torch.random.fork_rng():
        torch.manual_seed(settings.seed)
        network = PooledClassifier(settings, num_classes).to(learned.device)
    if torch.device(learned.device).type == "cuda":
        network = network.to(memory_format=torch.channels_last)
    cycle = settings.epochs * max(len(learned.images) // settings.batch_size, 1)
    steps = ClassifierSteps(network, settings.lr, settings.weight_decay, cycle, settings.precision, captured)
    network.train()
    layer = ", ".join([settings.pooling, *(f"{name} {value}" for name, value in settings.pooling_options.items())])
    with steps.at_work(), steps_under_way(f"{layer}, seed {settings.seed}", 0, cycle) as made:
        for epoch in range(settings.epochs):
            for pixels, labels in learned.training(epoch):
                steps.step(pixels, labels)
                made(f"epoch {epoch + 1} of {settings.epochs}")
        if steps.stream is not None:
            steps.stream.synchronize()
    return network, steps.graph is not None


@torch.no_grad()
def _accuracy(network: PooledClassifier, judged: Batches, settings: ClassifierSettings) -> float:
    right = 0
    for pixels, labels in judged.evaluation():
        with autocast(pixels.device, settings.precision):
            right += int((network(channels_last(pixels)).argmax(1) == labels).sum())
    return right / len(judged.images)


@torch.no_grad()
def _judge(
    network: PooledClassifier,
    learned: Batches,
    judged: Batches,
    settings: ClassifierSettings,
    num_classes: int,
) -> Geometry:
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
    return Geometry(
        accuracy=right / len(judged.images),
        metrics={name: metrics[name] for name in ("p@1", "map@r")},
        lda_dim=directions.shape[1],
        entropy=float(torch.cat(entropies).double().mean()) if entropies else None,
    )
