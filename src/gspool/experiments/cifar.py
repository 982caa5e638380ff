"""ResNet20 trained to classify CIFAR-100, the feature maps that heads learn from, and a tiny stand-in for CIFAR.

The collage and zero-shot studies start from it (Supp. 2.2). The paper says only that the backbone is pretrained on
CIFAR-100; ours gets about 68 % (post-activation) and 71 % (pre-activation) of the test images right, after two minutes
of training each on one H200.
"""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from gspool import data
from gspool.data.collage import SHARED
from gspool.executor import Failure, run_tasks
from gspool.experiments.runs import on_engine, training_folder
from gspool.files import write_atomic
from gspool.models import FeatureMapEmbedder
from gspool.models.cifar_resnet import Flavour, ResNet20
from gspool.models.pixels import PixelNormalisation
from gspool.terminal.signals import exit_with_line
from gspool.training import FitResult, TrainConfig, TrainerConfig, fit
from gspool.training.classify import ClassificationConfig, train_classifier
from gspool.training.gpu_data import TensorSet, load_tensors

if TYPE_CHECKING:
    from jaxtyping import Float, Float16, UInt8
    from torch import Tensor

    from gspool.data import ImageSet
    from gspool.data.image_set import Split
    from gspool.experiments.experiment import RunOptions
    from gspool.models.backbone import Backbone
    from gspool.models.embedder import Embedded

FLAVOURS: tuple[Flavour, ...] = ("postactivation", "preactivation-bottleneck")
# The pre-activation network is three times as wide, and needs fewer passes for the same accuracy.
EPOCHS: dict[Flavour, int] = {"postactivation": 100, "preactivation-bottleneck": 60}


@torch.no_grad()
def feature_maps(
    backbone: Backbone, stored: Tensor, picture: Callable[[Tensor], Tensor], batch_size: int = 512
) -> Float16[Tensor, "N C h w"]:
    """Run a backbone once over everything, in evaluation mode; ``picture`` turns stored entries into images."""
    normalise = PixelNormalisation(backbone.pixels).to(stored.device)
    backbone = backbone.eval().to(stored.device)
    maps = []
    for part in stored.split(batch_size):
        pixels = normalise(picture(part)).contiguous(memory_format=torch.channels_last)
        maps.append(backbone(pixels).half().contiguous())
    return torch.cat(maps)


def map_sets(backbone: Backbone, sets: Mapping[Split, ImageSet], device: torch.device | str) -> dict[Split, TensorSet]:
    """Compute the feature maps of image sets, on a device."""
    loaded = {split: load_tensors(images, device, shorter_side=None) for split, images in sets.items()}
    return {
        split: replace(images, pixels=feature_maps(backbone, images.pixels, lambda pixels: pixels))
        for split, images in loaded.items()
    }


def channel_statistics(
    maps: Float16[Tensor, "N C h w"], most: int = 2_000
) -> tuple[Float[Tensor, "C 1 1"], Float[Tensor, "C 1 1"]]:
    """Return mean and deviation of every channel of the first maps; a constant channel is only centred."""
    some = maps[:most].float()
    std = some.std((0, 2, 3))[:, None, None]
    return some.mean((0, 2, 3))[:, None, None], torch.where(std > 0, std, 1.0)


class MapHead(FeatureMapEmbedder):
    """Pool and embed stored feature maps: as they are, with tokens of unit length, or with standardised channels."""

    def __init__(
        self,
        channels: int,
        pooling: str,
        dim: int,
        *,
        unit: bool = False,
        statistics: tuple[Tensor, Tensor] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(channels, pooling, dim, **options)
        self.unit, self.statistics = unit, statistics

    def embed(self, images: Float16[Tensor, "B C h w"]) -> Embedded:
        """Embed maps that are stored in half precision, in single precision."""
        maps = images.float()
        if self.statistics is not None:
            mean, std = self.statistics
            maps = (maps - mean) / std
        elif self.unit:
            maps = F.normalize(maps, dim=1)
        return super().embed(maps)


def fit_head(
    config: TrainConfig,
    asked: Mapping[str, Any],
    folder: Path,
    device: str,
    model: Any,
    sets: Mapping[Split, TensorSet],
    seconds: float = 0.0,
    mixed: bool = False,
) -> FitResult | None:
    """Train a model of a grid on data in memory; None if time ran out. It holds the best state afterwards.

    Checkpoints are kept in a folder of their own until the training ends, so that an interrupted one continues.
    """
    on_engine(config.trainer, device, seconds, mixed)
    config.output.report = False
    place = training_folder(folder, asked)
    title = f"{config.loss.name} {config.model.pooling}, seed {config.trainer.seed}"
    result = fit(config, place, title, model=model, sets=sets)
    if result.ending == "time":
        return None
    shutil.rmtree(place)
    return result


@dataclass(frozen=True)
class PretrainingSettings:
    """How the classifier is trained; the paper does not say."""

    flavour: Flavour = "postactivation"
    epochs: int = 100
    batch_size: int = 512
    lr: float = 0.5
    weight_decay: float = 5e-4
    seed: int = 0


class Classifier(nn.Module):
    """ResNet20, average pooling and a linear layer."""

    def __init__(self, flavour: Flavour, num_classes: int) -> None:
        super().__init__()
        self.backbone = ResNet20(flavour)
        self.normalisation = PixelNormalisation(self.backbone.pixels)
        self.linear = nn.Linear(self.backbone.channels, num_classes)

    def forward(self, pixels: UInt8[Tensor, "B 3 H W"]) -> Float[Tensor, "B K"]:
        """Return the logits."""
        return self.linear(self.backbone(self.normalisation(pixels)).mean((2, 3)))


def pretrain(
    root: Path | None, folder: Path, device: str, settings: PretrainingSettings
) -> tuple[bytes, dict[str, Any]]:
    """Train a backbone to classify CIFAR-100: shifted and flipped images, SGD, one cycle of the learning rate.

    Returns the bytes of a safetensors file, and how the weights in it came about.
    """
    from safetensors.torch import save

    splits: tuple[Split, ...] = ("train", "test")
    sets = (data.create("cifar100", root, split, allow_partial=True) for split in splits)
    train, test = (load_tensors(images, device, shorter_side=None) for images in sets)
    train = replace(train, transform="shift")
    torch.manual_seed(settings.seed)
    network = Classifier(settings.flavour, train.num_classes)
    trainer = TrainerConfig()
    on_engine(trainer, device, mixed=True)
    place = training_folder(folder, asdict(settings))
    outcome = train_classifier(
        network,
        train,
        test,
        ClassificationConfig(settings.batch_size, "sgd", settings.lr, settings.weight_decay),
        epochs=settings.epochs,
        seed=settings.seed,
        folder=place,
        title=f"ResNet20 ({settings.flavour})",
        precision=trainer.precision,
        progress=trainer.progress,
        checkpoint_every=max(len(train) // settings.batch_size, 1),
    )
    shutil.rmtree(place)
    weights = {name: value.detach().cpu().contiguous() for name, value in network.backbone.state_dict().items()}
    known = {**asdict(settings), "accuracy": outcome.best_value, "seconds": round(outcome.seconds, 1)}
    return save(weights), known


def weights_file(folder: Path, flavour: Flavour) -> Path:
    """Return where the weights of a flavour are kept; a JSON file beside it describes them."""
    return folder / f"resnet20-{flavour}.safetensors"


def read_backbone(folder: Path, flavour: Flavour, device: str) -> ResNet20:
    """Read a backbone from its file, in evaluation mode."""
    return ResNet20(flavour, weights_file(folder, flavour)).to(torch.device(device)).eval()


def pretrain_missing(
    flavours: Sequence[Flavour], root: Path | None, folder: Path, options: RunOptions
) -> list[dict[str, Any]]:
    """Train the backbones that the folder lacks, and return the descriptions of all."""
    folder.mkdir(parents=True, exist_ok=True)
    tiny = PretrainingSettings(epochs=1, batch_size=64, lr=0.1)
    tasks = [
        replace(tiny, flavour=flavour) if options.quick else PretrainingSettings(flavour, EPOCHS[flavour])
        for flavour in flavours
        if not weights_file(folder, flavour).with_suffix(".json").is_file()
    ]
    worker = partial(partial, pretrain, root, folder, options.device)
    with exit_with_line(lambda: "stopped while the backbone is trained; the same command continues"):
        # Without a task nothing starts, not even a worker.
        for task, made in run_tasks(worker, tasks, options.executor) if tasks else ():
            if isinstance(made, Failure):
                raise RuntimeError(f"the training of ResNet20 ({task.flavour}) failed: {made.message}")
            path = weights_file(folder, task.flavour)
            weights, description = made
            write_atomic(path, weights)
            # Written last: where it is, the weights are complete.
            write_atomic(path.with_suffix(".json"), json.dumps(description, indent=1).encode())
    return [json.loads(weights_file(folder, flavour).with_suffix(".json").read_text()) for flavour in flavours]


FOLDER_100, FOLDER_10 = "cifar-100-python", "cifar-10-batches-py"
SUPER_CLASSES, SUB_CLASSES = 20, 5


def write_cifar100_stand_in(root: Path, images: int = 10, test_images: int = 4, seed: int = 0) -> Path:
    """Write a CIFAR-100 of coloured noise: 20 super-classes of 5 classes, one colour a super-class.

    Returns the folder that `gspool.data` takes as the root. An existing stand-in is kept.
    """
    folder = root / FOLDER_100
    if (folder / "meta").exists():
        return root
    folder.mkdir(parents=True, exist_ok=True)
    coarse_names = sorted([*SHARED, *(f"thing_{number:02d}" for number in range(SUPER_CLASSES - len(SHARED)))])
    fine_names = [f"{coarse}_{sub}" for coarse in coarse_names for sub in range(SUB_CLASSES)]
    draws = np.random.default_rng(seed)
    colours = _colours(len(coarse_names), draws)
    for part, count in (("train", images), ("test", test_images)):
        fine = np.repeat(np.arange(len(fine_names)), count)
        coarse = fine // SUB_CLASSES
        content = {
            "data": _noise(colours[coarse], draws),
            "fine_labels": fine.tolist(),
            "coarse_labels": coarse.tolist(),
        }
        _write(folder / part, content)
    _write(folder / "meta", {"fine_label_names": fine_names, "coarse_label_names": coarse_names})
    return root


def write_cifar10_stand_in(root: Path, images: int = 4, test_images: int = 8, seed: int = 0) -> Path:
    """Write a CIFAR-10 of coloured noise: ``images`` of a class in each of its five batches."""
    folder = root / FOLDER_10
    if (folder / "batches.meta").exists():
        return root
    folder.mkdir(parents=True, exist_ok=True)
    names = [f"thing {number}" for number in range(10)]
    draws = np.random.default_rng(seed)
    colours = _colours(len(names), draws)
    for part, count in (*((f"data_batch_{number}", images) for number in range(1, 6)), ("test_batch", test_images)):
        labels = np.repeat(np.arange(len(names)), count)
        _write(folder / part, {"data": _noise(colours[labels], draws), "labels": labels.tolist()})
    _write(folder / "batches.meta", {"label_names": names})
    return root


def _colours(number: int, draws: np.random.Generator) -> Any:
    return draws.integers(0, 256, (number, 3))


def _noise(colours: Any, draws: np.random.Generator) -> Any:
    """Return rows of 3,072 bytes, the red plane first, each around one colour."""
    shade = draws.integers(-40, 41, (len(colours), 3, 1024))
    return np.clip(colours[:, :, None] + shade, 0, 255).astype(np.uint8).reshape(len(colours), 3072)


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_bytes(pickle.dumps(content, protocol=2))
