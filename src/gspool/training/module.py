"""One training step: images to embeddings, the batch of all processes to a loss."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from gspool.losses import LossParts
from gspool.training.build import build_optimiser
from gspool.training.engine import lightning
from gspool.training.gather import gather_rows
from gspool.training.stream import Batch, mixed_seed
from gspool.training.warm_start_notice import open_warm_start

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from gspool.losses import MetricLoss
    from gspool.models import Embedder
    from gspool.training.config import TrainConfig

# Of the full rate, where a rise begins.
LOWEST = 0.04
Module: Any = lightning().LightningModule


class EmbeddingTraining(Module):
    """An embedding model and its loss, for Lightning to train.

    ``step`` counts over interruptions, which Lightning's own count does not. Everything random in a step is drawn from
    (seed, step), so that a step is the same whether or not the run was interrupted before it.
    """

    def __init__(self, model: Embedder, loss: MetricLoss, config: TrainConfig, warmup_steps: int = 0) -> None:
        super().__init__()
        self.model, self.loss, self.config = model, loss, config
        self.warmup_steps = warmup_steps
        self.step = 0
        self.parts: LossParts | None = None
        self.rows: Tensor | None = None

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Make the optimiser; schedules act on its groups directly."""
        optimiser = build_optimiser(self.config.optimiser, self)
        for group in optimiser.param_groups:
            group["full_lr"] = group["lr"]
        return optimiser

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        """Set the learning rate of this step; freeze the backbone for the warm-up, thaw it afterwards."""
        schedule, steps = self.config.schedule, self.config.trainer.max_steps
        if schedule.name == "cosine":
            for group in self.trainer.optimizers[0].param_groups:
                group["lr"] = group["full_lr"] * cosine_factor(self.step, steps, schedule.ramp)
        wanted = "all" if self.step < self.warmup_steps else self.config.model.freeze
        if self.model.settings.freeze != wanted:
            self.model.freeze(wanted)

    def training_step(self, batch: Batch, batch_idx: int) -> Float[Tensor, ""]:
        """Embed this process's images and compute the loss of the whole batch."""
        seed = self.config.trainer.seed
        # Until prototypes are chosen, attributes are flat and carry nothing to regularise.
        collecting = open_warm_start(self.model) is not None
        torch.manual_seed(mixed_seed(seed, self.step, self.global_rank))
        embedded = self.model.embed(batch.images)
        # The same on every process: all of them must split the batch of all alike.
        torch.manual_seed(mixed_seed(seed, self.step))
        embeddings, labels = gather_rows(embedded.embedding), gather_rows(batch.labels)
        attributes = None if embedded.attributes is None or self.loss.zsr is None else embedded.attributes
        with torch.autocast(embeddings.device.type, enabled=False):
            if collecting and self.loss.zsr is not None:
                metric = self.loss.metric(embeddings, labels)
                # Distributed training waits for a gradient of every parameter.
                idle = sum(0.0 * parameter.sum() for parameter in self.loss.zsr.parameters())
                self.parts = LossParts(total=(1 - self.loss.zsr_weight) * metric + idle, metric=metric)
            else:
                gathered = None if attributes is None else gather_rows(attributes.to(embeddings.dtype))
                self.parts = self.loss(embeddings, labels, gathered)
        self.rows = batch.rows
        return self.parts.total


def cosine_factor(step: int, steps: int, ramp: float) -> float:
    """Give the share of the full learning rate: a straight rise over the first ``ramp`` of the steps, then a cosine.

    Example:
        >>> [round(cosine_factor(step, 100, 0.1), 2) for step in (0, 10, 55, 99)]
        [0.04, 1.0, 0.5, 0.0]
    """
    rising = ramp * steps
    if step < rising:
        return LOWEST + (1 - LOWEST) * step / rising
    return 0.5 * (1 + math.cos(math.pi * (step - rising) / (steps - rising)))
