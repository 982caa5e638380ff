"""The backbones of the collage study: ResNet20 in both flavours, trained to classify CIFAR-100, kept in files."""

from __future__ import annotations

import json
from collections import deque
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from gspool import data
from gspool.data.image_set import Split
from gspool.experiments.cifar_pretraining import LabelledPixels, PretrainingSettings, description, pretrain
from gspool.experiments.collage.maps import all_pixels
from gspool.experiments.crew import Broken, Crew, told_when_stopped
from gspool.models.cifar_resnet import Flavour

FLAVOURS: tuple[Flavour, ...] = ("postactivation", "preactivation-bottleneck")
# The second is three times as wide, so it needs fewer passes to the same accuracy.
EPOCHS: dict[Flavour, int] = {"postactivation": 100, "preactivation-bottleneck": 60}


def weights_file(folder: Path, flavour: Flavour) -> Path:
    """Say where the weights of a flavour are kept; what is known about them stands in a JSON file beside it."""
    return folder / f"resnet20-{flavour}.safetensors"


def pretrain_missing(
    flavours: tuple[Flavour, ...], root: Path | None, folder: Path, device: str, settings: PretrainingSettings | None
) -> list[dict[str, Any]]:
    """Train the backbones that are not in the folder, side by side; give what is known about all of them.

    ``settings`` None takes those that the study promises; their flavour is replaced.

    Raises:
        FileNotFoundError: if CIFAR-100 is not under ``root``.
        RuntimeError: if one of them broke.
    """
    folder.mkdir(parents=True, exist_ok=True)
    missing = [flavour for flavour in flavours if not weights_file(folder, flavour).with_suffix(".json").is_file()]
    jobs = [
        (
            replace(settings, flavour=flavour)
            if settings is not None
            else PretrainingSettings(flavour=flavour, epochs=EPOCHS[flavour])
        )
        for flavour in missing
    ]

    def there(flavour: Flavour) -> bool:
        return weights_file(folder, flavour).with_suffix(".json").is_file()

    with told_when_stopped(lambda: sum(map(there, missing)), len(missing)):
        if len(jobs) <= 1 or device == "cpu":
            for job in jobs:
                pretrain_one(root, folder, device, job)
        else:
            waiting = deque(jobs)
            with Crew(pretrain_one, (root, folder, device), len(jobs)) as crew:
                for job, answer in crew.answers(lambda: waiting.popleft() if waiting else None):
                    if isinstance(answer, Broken):
                        raise RuntimeError(f"the training of ResNet20 {job.flavour} broke: {answer.told}")
    return [json.loads(weights_file(folder, flavour).with_suffix(".json").read_text()) for flavour in flavours]


def pretrain_one(root: Path | None, folder: Path, device: str, settings: PretrainingSettings) -> None:
    """Train one flavour and write its weights, and then what is known about it: where that stands, it is whole."""
    from safetensors.torch import save_file

    trained = pretrain(_pixels(root, "train", device), _pixels(root, "test", device), settings, say=print)
    path = weights_file(folder, settings.flavour)
    save_file(trained.weights, path)
    path.with_suffix(".json").write_text(json.dumps(description(settings, trained), indent=1), encoding="utf-8")


def _pixels(root: Path | None, split: Split, device: str) -> LabelledPixels:
    images = data.create("cifar100", root, split, allow_partial=True)
    return LabelledPixels(all_pixels(images).to(device), images.labels.to(device))


def read_backbone(folder: Path, flavour: Flavour, device: str) -> Any:
    """Read a backbone back from its file."""
    from gspool.models.cifar_resnet import ResNet20

    backbone = ResNet20(flavour, weights_file(folder, flavour))
    return backbone.to(torch.device(device)).eval()
