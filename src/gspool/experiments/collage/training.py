"""One training of the collage study: a head on feature maps that stand still, or the whole network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch

from gspool.experiments.certificate import device_name
from gspool.experiments.collage.course import CaptureFailedError, Course, CourseResult
from gspool.experiments.collage.maps import Splits, StitchedTiles
from gspool.experiments.collage.models import CollageEmbedder, MapHead, channel_statistics
from gspool.experiments.collage.weights import weight_on_object
from gspool.models.cifar_resnet import Flavour, ResNet20
from gspool.training.presets import PRESETS

if TYPE_CHECKING:
    from torch import Tensor

    from gspool.experiments.collage.models import Features
    from gspool.training import TrainConfig

# Supp. 2.2; the paper's m, mu and epsilon on Cifar Collage, and the start of the authors' reference implementation.
GSP_OPTIONS = {"prototypes": 128, "mu": 0.2, "epsilon": 10.0, "warm_start": 1024}
GSP_LAYERS = ("gsp", "gmp+gsp", "gemean+gsp")
ZSR = 0.5
# Layers that solve linear systems, as the regularisation does: a solver asks the device whether it succeeded.
SOLVING = ("gemax",)


@dataclass(frozen=True)
class Training:
    """What is trained and how; the defaults are the paper's where it has any (Supp. 2.2).

    Args:
        pooling: a name of `gspool.pooling.list()`.
        loss: ``c2`` or ``pnca``.
        seed: of weights and batches.
        options: of the pooling layer; those of GSP are the paper's where not given.
        dim: length of the embedding.
        zsr: weight of the zero-shot regularisation.
        lr: learning rate at the start.
        proxies: factor on it for the proxies of the loss.
        features: what is done to the maps of a frozen backbone.
        flavour: of ResNet20.
        data: ``collage``, or ``distilled``, the objects alone.
        backbone: ``frozen``, or ``fine-tuned`` on collages that are stitched anew whenever they are seen.
        epochs: passes over the data at most.
        patience: passes without a better validation before it stops.
    """

    pooling: str
    loss: str
    seed: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)
    dim: int = 128
    zsr: float = 0.0
    lr: float = 1e-3
    proxies: float = 1.0
    features: Features = "plain"
    flavour: Flavour = "postactivation"
    data: Literal["collage", "distilled"] = "collage"
    backbone: Literal["frozen", "fine-tuned"] = "frozen"
    epochs: int = 30
    patience: int = 10

    def asked(self) -> dict[str, Any]:
        """Give it as plain data, by which a finished training is found again."""
        return asdict(self)

    @property
    def layer_options(self) -> dict[str, Any]:
        """Options of the pooling layer, the paper's included."""
        return {**(GSP_OPTIONS if self.pooling in GSP_LAYERS else {}), **self.options}


class Ground(NamedTuple):
    """What trainings start from, on one device: maps by (data, flavour), tiles, weights by flavour.

    ``backend`` is GSP's; ``captured`` says whether a GPU replays steps from a graph.
    """

    maps: dict[tuple[str, str], Splits]
    collages: StitchedTiles
    weights: dict[str, dict[str, Tensor]]
    backend: str = "torch"
    captured: bool = True


def settings_of(training: Training, train_images: int) -> TrainConfig:
    """Turn it into the settings of a run, starting from the preset of the collage study."""
    config = PRESETS["paper/collage"]()
    steps = max(train_images // config.data.batch_size, 1)
    config.loss.name, config.loss.zsr = training.loss, training.zsr
    config.optimiser.lr, config.optimiser.proxies = training.lr, training.proxies
    # "Default Adam" clips nothing.
    config.optimiser.clip = 0.0
    config.model.pooling, config.model.pooling_options = training.pooling, training.layer_options
    config.model.freeze = "batchnorm"
    config.trainer.max_steps, config.trainer.evaluate_every = training.epochs * steps, steps
    config.trainer.patience, config.trainer.seed = training.patience, training.seed
    config.output.ks = [1]
    return config


def model_of(training: Training, ground: Ground) -> MapHead | CollageEmbedder:
    """Make the model with weights drawn from the seed."""
    torch.manual_seed(training.seed)
    options = training.layer_options
    if training.pooling in GSP_LAYERS:
        options["backend"] = ground.backend
    if training.backbone == "frozen":
        maps = ground.maps[training.data, training.flavour].train.pixels
        statistics = channel_statistics(maps) if training.features == "standardised" else None
        return MapHead(maps.shape[1], training.pooling, training.dim, training.features, statistics, **options)
    backbone = ResNet20(training.flavour)
    backbone.load_state_dict(ground.weights[training.flavour])
    return CollageEmbedder(backbone, training.pooling, training.dim, ground.collages, options)


def train_one(training: Training, ground: Ground, device: str) -> dict[str, Any]:
    """Train, and give plain figures: those of the test classes, the course of validation, where the weights lie."""
    splits = splits_of(training, ground)
    model, result = run_course(training, ground, device)
    found: dict[str, Any] = {
        "map@r": result.metrics["map@r"],
        "p@1": result.metrics["p@1"],
        "validation": result.validation,
        "entropy": result.entropy,
        "steps": result.steps,
        "best_step": result.best_step,
        "seconds": round(result.seconds, 1),
        "steps_per_second": round(result.steps_per_second),
        "captured": result.captured,
        "device": device_name(torch.device(device)),
        "curve": [round(value, 5) for value in result.curve],
    }
    if training.data == "collage":
        found["on_object"] = weight_on_object(model, splits.test.pixels, ground.collages.objects["test"])
    return found


def run_course(training: Training, ground: Ground, device: str) -> tuple[MapHead | CollageEmbedder, CourseResult]:
    """Train, by captured steps where they can be captured; the outcome says which it was."""
    splits = splits_of(training, ground)
    settings = settings_of(training, len(splits.train))
    captured = ground.captured and training.pooling not in SOLVING and not training.zsr
    model = model_of(training, ground)
    try:
        return model, Course(settings, splits, device, model, captured).run()
    except CaptureFailedError:
        model = model_of(training, ground)
        return model, Course(settings, splits, device, model, captured=False).run()


def splits_of(training: Training, ground: Ground) -> Splits:
    """Give what a training learns from: maps where the backbone stands still, tiles to stitch where it learns."""
    return ground.maps[training.data, training.flavour] if training.backbone == "frozen" else ground.collages.parts
