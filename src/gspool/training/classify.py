"""The classification task: cross-entropy on images in memory of the device, top-1 accuracy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
import torch.nn.functional as F

from gspool.data import ShuffledBatches
from gspool.data.image_set import mixed_seed
from gspool.losses import LossParts
from gspool.models.freezing import evaluating
from gspool.training.config import ScheduleConfig, TrainerConfig
from gspool.training.gpu_data import TensorSet, tensor_batches
from gspool.training.loop import LoopOutcome, Task, run_loop
from gspool.training.processes import make_fabric
from gspool.training.stream import Batch, seed_step

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class ClassificationConfig:
    """How a classifier learns.

    Args:
        batch_size: images per step.
        optimiser: "sgd" with Nesterov momentum 0.9, or "adam".
        lr: the largest learning rate.
        weight_decay: weight decay of all parameters.
        label_smoothing: share of the target spread over all classes.
        clip: largest norm of the gradient; 0 does not clip.
    """

    batch_size: int = 512
    optimiser: Literal["sgd", "adam"] = "sgd"
    lr: float = 0.5
    weight_decay: float = 5e-4
    label_smoothing: float = 0.0
    clip: float = 0.0


class Classification(Task):
    """Train a network that returns logits. Augmentation is the transform of the training set.

    Every epoch is a permutation from (seed, epoch); what is left over after the last whole batch is left out. A step
    sees the same images whether or not the run was interrupted before it. Accuracy is measured on ``watched``.

    Raises:
        ValueError: if there are fewer images than a batch holds.

    Example:
        >>> images = TensorSet.of(torch.rand(8, 2), torch.tensor([0, 1]).repeat(4))
        >>> task = Classification(torch.nn.Linear(2, 2), images, images, ClassificationConfig(batch_size=4))
        >>> len(list(task.batches(0, 5)))
        5
    """

    measures = ("accuracy",)

    def __init__(
        self,
        network: nn.Module,
        train: TensorSet,
        watched: TensorSet | None,
        config: ClassificationConfig,
        seed: int = 0,
    ) -> None:
        self.plan = ShuffledBatches(train.labels, config.batch_size, seed=seed)
        self.steps_per_epoch = len(self.plan)
        self.module, self.train, self.watched, self.config, self.seed = network, train, watched, config, seed
        self.clip = config.clip

    def optimiser(self) -> torch.optim.Optimizer:
        """Return the configured optimiser."""
        config, parameters = self.config, self.module.parameters()
        if config.optimiser == "adam":
            return torch.optim.Adam(parameters, config.lr, weight_decay=config.weight_decay)
        return torch.optim.SGD(parameters, config.lr, momentum=0.9, weight_decay=config.weight_decay, nesterov=True)

    def batches(self, first: int, last: int) -> Iterable[Batch]:
        """Return the batches of steps ``first`` to ``last - 1``."""
        return tensor_batches(self.train, self.plan, first, last, self.seed)

    def loss(self, batch: Batch, step: int) -> LossParts:
        """Compute the cross-entropy of a batch."""
        seed_step(mixed_seed(self.seed, step), batch.images.device)
        logits = self.module(batch.images).float()
        loss = F.cross_entropy(logits, batch.labels, label_smoothing=self.config.label_smoothing)
        return LossParts(total=loss, metric=loss)

    def evaluate(self) -> Mapping[str, float]:
        """Measure top-1 accuracy on the watched set."""
        return {} if self.watched is None else {"accuracy": top_1(self.module, self.watched)}


@torch.no_grad()
def top_1(network: nn.Module, images: TensorSet, batch_size: int = 1_024) -> float:
    """Compute the share of images whose largest logit is that of their class.

    Example:
        >>> top_1(torch.nn.Identity(), TensorSet.of(torch.eye(4), torch.tensor([0, 1, 2, 0])))
        0.75
    """
    right = 0
    with evaluating(network):
        for places in torch.arange(len(images)).split(batch_size):
            predicted = network(images.evaluation_images(places)).argmax(1)
            right += int((predicted.cpu() == images.labels[places]).sum())
    return right / len(images)


def train_classifier(
    network: nn.Module,
    train: TensorSet,
    watched: TensorSet | None,
    config: ClassificationConfig,
    *,
    epochs: float,
    schedule: ScheduleConfig | None = None,
    evaluate_epochs: float = 0.0,
    seed: int = 0,
    folder: Path | None = None,
    title: str = "",
    **trainer: Any,
) -> LoopOutcome:
    """Train the network of a `Classification` in place on the device of its data.

    The state of the best accuracy is kept where a set is watched, so watch the test set only if ``epochs`` is the only
    evaluation. With a folder, which gets checkpoints and metrics, the training resumes.

    Args:
        epochs: passes over the data.
        schedule: how the learning rate changes; "one-cycle" with a rise over a fifth of the steps unless given.
        evaluate_epochs: passes between evaluations; 0 evaluates at the end alone.
        **trainer: other fields of `TrainerConfig`, such as precision, progress, max_seconds.
    """
    task = Classification(network, train, watched, config, seed)
    steps = max(round(epochs * task.steps_per_epoch), 1)
    every = max(round(evaluate_epochs * task.steps_per_epoch), 1) if evaluate_epochs else steps
    device = train.device
    settings = TrainerConfig(
        **{
            "max_steps": steps,
            "evaluate_every": min(every, steps),
            "monitor": "accuracy",
            "seed": seed,
            "progress": False,
            **trainer,
        }
    )
    fabric = make_fabric(settings, device=device)
    if device.type == "cuda":
        network.to(memory_format=torch.channels_last)
    return run_loop(task, fabric, settings, schedule or ScheduleConfig("one-cycle", ramp=0.2), folder, title)
