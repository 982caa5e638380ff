"""One training of the collage study: a head on feature maps that stand still, or the whole network."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from gspool.experiments.captured_step import CaptureFailedError
from gspool.experiments.collage.course import Course, CourseResult
from gspool.experiments.collage.maps import Splits, StitchedTiles
from gspool.experiments.collage.measure import measured
from gspool.experiments.collage.models import CollageEmbedder, MapHead, channel_statistics
from gspool.experiments.collage.recipe import GSP_LAYERS, Training, settings_of
from gspool.experiments.collage.weights import weight_on_object
from gspool.models.cifar_resnet import ResNet20
from gspool.provenance import device_name

if TYPE_CHECKING:
    from jaxtyping import Int64
    from torch import Tensor

    from gspool.experiments.resident import ResidentSet


class Ground(NamedTuple):
    """What trainings start from, on one device: maps by (data, flavour), tiles, weights by flavour.

    ``backend`` is GSP's; ``captured`` says whether a GPU replays steps from a graph.
    """

    maps: dict[tuple[str, str], Splits]
    collages: StitchedTiles
    weights: dict[str, dict[str, Tensor]]
    backend: str = "torch"
    captured: bool = True


def model_of(training: Training, ground: Ground) -> MapHead | CollageEmbedder:
    """Make the model with weights drawn from the seed."""
    torch.manual_seed(training.seed)
    options = training.layer_options
    if training.pooling in GSP_LAYERS:
        options["backend"] = ground.backend
    if training.backbone == "frozen":
        maps = ground.maps[training.data, training.flavour].train.pixels
        statistics = channel_statistics(maps) if training.features == "standardised" else None
        sizes = (maps.shape[1], training.pooling, training.dim)
        return MapHead(*sizes, training.features, statistics, training.embedding, **options)
    if training.embedding != "own":
        raise ValueError("where the local embedding stands is varied on frozen maps only; use backbone='frozen'")
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
        inner = relabelled(splits.test, ground.collages.sub_classes["test"])
        found["by_sub_class"] = measured(model, inner).metrics["map@r"]
    return found


def run_course(training: Training, ground: Ground, device: str) -> tuple[MapHead | CollageEmbedder, CourseResult]:
    """Train, by captured steps where they can be captured; the outcome says which it was."""
    splits = splits_of(training, ground)
    settings = settings_of(training, len(splits.train))
    captured = ground.captured and training.can_be_captured
    model = model_of(training, ground)
    try:
        return model, Course(settings, splits, device, model, captured, training.mixed).run()
    except CaptureFailedError:
        model = model_of(training, ground)
        return model, Course(settings, splits, device, model, False, training.mixed).run()


def splits_of(training: Training, ground: Ground) -> Splits:
    """Give what a training learns from: maps where the backbone stands still, tiles to stitch where it learns.

    Validation has one class of CIFAR-100 for each super-class, so that both kinds of labels are judged alike.
    """
    splits = ground.maps[training.data, training.flavour] if training.backbone == "frozen" else ground.collages.parts
    if training.labels == "super-classes":
        return splits
    if training.data != "collage":
        raise ValueError(f"sub-classes are known of collages, got data {training.data!r}; use labels='super-classes'")
    return splits._replace(train=relabelled(splits.train, ground.collages.sub_classes["train"]))


def relabelled(images: ResidentSet, labels: Int64[Tensor, " N"]) -> ResidentSet:
    """Give the same images other labels."""
    return replace(images, labels=labels.to(images.labels.device))
