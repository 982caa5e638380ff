"""Eight prototypes on CIFAR-10, with and without the zero-shot regularisation (Supp. 2.3)."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from gspool import data
from gspool.data.splits import image_fold
from gspool.evaluation import zero_shot_prediction
from gspool.experiments.collage.course import Course
from gspool.experiments.collage.maps import Splits, all_pixels, feature_maps, thinned
from gspool.experiments.collage.models import MapHead
from gspool.experiments.resident import ResidentSet
from gspool.training.presets import PRESETS

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from gspool.models.backbone import Backbone
    from gspool.training import TrainConfig

CLASSES = 10
SPLITS = 1000


@dataclass(frozen=True)
class ZeroShotTraining:
    """One training. The paper gives 8 prototypes and the loss; mu, epsilon and lambda are those of Cifar Collage.

    Args:
        zsr: weight of the regularisation; 0 leaves it out.
        seed: of weights and batches.
        prototypes: m.
        mu: part of the mass to pool.
        epsilon: sharpness.
        dim: length of the embedding.
        lr: learning rate.
        images_per_class: images of each of the ten classes in a batch.
        steps: how long.
        images: training images of each class at most; None takes all.
    """

    zsr: float = 0.0
    seed: int = 0
    prototypes: int = 8
    mu: float = 0.2
    epsilon: float = 10.0
    dim: int = 128
    lr: float = 1e-3
    images_per_class: int = 6
    steps: int = 3_000
    images: int | None = None

    def asked(self) -> dict[str, Any]:
        """Give it as plain data, by which a finished training is found again."""
        return asdict(self)


class Attributes(NamedTuple):
    """What a model says about images: which prototypes they hold, and where they lie."""

    attributes: Float[Tensor, "N M"]
    embeddings: Float[Tensor, "N D"]


def cifar10_maps(backbone: Backbone, root: Path | None, device: str, most: int | None = None) -> Splits:
    """Compute the maps of CIFAR-10; a tenth of the training images is held out to watch the training.

    ``most`` keeps at most so many training images of each class.
    """
    train = thinned(data.create("cifar10", root, "train", allow_partial=True), most)
    fold = image_fold(train, fold=0, folds=10)
    parts = (fold.train, fold.validation, data.create("cifar10", root, "test", allow_partial=True))

    def maps(images: data.ImageSet) -> ResidentSet:
        pixels = all_pixels(images).to(device)
        return ResidentSet.of(feature_maps(backbone, pixels, lambda part: part), images.labels)

    return Splits(*map(maps, parts))


def settings_of(training: ZeroShotTraining, train_images: int) -> TrainConfig:
    """Turn it into the settings of a run: those of Cifar Collage, all ten classes in every batch."""
    config = PRESETS["paper/collage"]()
    config.data.classes_per_batch, config.data.images_per_class = CLASSES, training.images_per_class
    config.loss.name, config.loss.zsr = "pnca", training.zsr
    config.optimiser.lr, config.optimiser.clip = training.lr, 0.0
    config.trainer.max_steps, config.trainer.seed = training.steps, training.seed
    config.trainer.evaluate_every = max(training.steps // 3, 1)
    config.trainer.patience = None
    return config


def train_zero_shot(training: ZeroShotTraining, maps: Splits, device: str, backend: str = "torch") -> dict[str, Any]:
    """Train a head, describe the test images by its attributes, and predict classes from others."""
    torch.manual_seed(training.seed)
    model = MapHead(
        maps.train.pixels.shape[1],
        "gsp",
        training.dim,
        prototypes=training.prototypes,
        mu=training.mu,
        epsilon=training.epsilon,
        # The reference's start by k-center, from the vectors of the first two batches.
        warm_start=2 * CLASSES * training.images_per_class,
        backend=backend,
    )
    course = Course(settings_of(training, len(maps.train)), maps, device, model, captured=not training.zsr)
    result = course.run()
    seen = describe(model, maps.test)
    test = zero_shot_prediction(seen.attributes, seen.embeddings, maps.test.labels, SPLITS, training.seed)
    histograms = torch.stack([seen.attributes[maps.test.labels == label].mean(0) for label in range(CLASSES)])
    return {
        "map@r": result.metrics["map@r"],
        "p@1": result.metrics["p@1"],
        "entropy": result.entropy,
        **{f"{name}_{kind}": getattr(test, f"{name}_{kind}").mean for name in ("accuracy", "map") for kind in KINDS},
        **{f"{name}_{kind}_std": getattr(test, f"{name}_{kind}").std for name in ("accuracy", "map") for kind in KINDS},
        "chance": test.chance,
        "histograms": [[round(value, 5) for value in row] for row in histograms.tolist()],
        "seconds": round(result.seconds, 1),
    }


KINDS = ("l2", "cosine")


@torch.no_grad()
def describe(model: MapHead, images: ResidentSet, batch_size: int = 500) -> Attributes:
    """Give attributes and embeddings of every image.

    Raises:
        ValueError: if the pooling layer has no attributes.
    """
    model.eval()
    attributes, embeddings = [], []
    for places in torch.arange(len(images), device=images.rows.device).split(batch_size):
        embedded = model.embed(images.pixels[images.rows[places]])
        if embedded.attributes is None:
            raise ValueError("this pooling layer has no attributes to predict classes from; use gsp")
        attributes.append(embedded.attributes.float())
        embeddings.append(embedded.embedding.float())
    return Attributes(torch.cat(attributes), torch.cat(embeddings))
