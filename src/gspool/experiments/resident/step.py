"""One training step on resident data, the same arithmetic as any other run of this project."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from gspool.experiments.captured_step import STEPS_BEFORE_CAPTURE
from gspool.experiments.resident.evaluation import autocast, channels_last
from gspool.experiments.resident.folded_norms import computed_in
from gspool.experiments.resident.rounded_weights import RoundedWeights
from gspool.losses import LossParts
from gspool.pooling.warm_start import WarmStart
from gspool.training.build import build_optimiser
from gspool.training.stream import mixed_seed

if TYPE_CHECKING:
    from jaxtyping import Int64, UInt8
    from torch import Tensor

    from gspool.losses import MetricLoss
    from gspool.training import TrainConfig


class Learner(nn.Module):
    """A model, its loss and its optimiser: `learn` makes one step of them.

    After some steps, when the optimiser has its state, weights of folded convolutions are rounded and stepped together.
    """

    def __init__(self, model: Any, loss: MetricLoss, config: TrainConfig) -> None:
        super().__init__()
        self.model, self.loss, self.config = model, loss, config
        self.optimiser = build_optimiser(config.optimiser, self)
        if next(self.parameters()).is_cuda:
            for group in self.optimiser.param_groups:
                # One kernel for all parameters instead of a dozen: the step of Adam is the same.
                group["fused"], group["foreach"] = True, False
        self.steps_alone = 0
        self.rounded: RoundedWeights | None = None
        self._warm_starts = [part for part in model.modules() if isinstance(part, WarmStart)]

    @property
    def collecting(self) -> bool:
        """Say whether prototypes have yet to be chosen."""
        return any(part.collecting for part in self._warm_starts)

    def learn(self, images: UInt8[Tensor, "B 3 H W"], labels: Int64[Tensor, " B"], step: int) -> LossParts:
        """Make one step; everything random in it is drawn from (seed, step)."""
        collecting = self.collecting
        self.steps_alone = 0 if collecting else self.steps_alone + 1
        if self.steps_alone == STEPS_BEFORE_CAPTURE:
            self.rounded = self._taken_together(images.device)
        torch.manual_seed(mixed_seed(self.config.trainer.seed, step, 0))
        embedded = self._embed(images)
        torch.manual_seed(mixed_seed(self.config.trainer.seed, step))
        return self._descend(self._loss(embedded.embedding, labels, embedded.attributes, collecting))

    def what_learns_changed(self) -> None:
        """Take note that parameters were frozen or thawed."""
        self.steps_alone, self.rounded = 0, None

    def _taken_together(self, device: torch.device) -> RoundedWeights | None:
        """Take hold of the weights that can be rounded together; None where there are no such ones."""
        with autocast(device, self.config.trainer.precision):
            dtype = computed_in(next(self.model.parameters()))
        try:
            return RoundedWeights(self.model, self.optimiser, dtype)
        except ValueError:
            return None

    def _embed(self, images: UInt8[Tensor, "B 3 H W"]) -> Any:
        rounded = nullcontext() if self.rounded is None else self.rounded.used()
        with rounded, autocast(images.device, self.config.trainer.precision):
            return self.model.embed(channels_last(images))

    def _descend(self, parts: LossParts) -> LossParts:
        self.optimiser.zero_grad(set_to_none=True)
        if self.rounded is not None:
            self.rounded.forget()
            parts.total.backward()
            self.rounded.descend(self.config.optimiser.clip)
            return parts
        parts.total.backward()
        if self.config.optimiser.clip:
            learned = [each for group in self.optimiser.param_groups for each in group["params"]]
            nn.utils.clip_grad_norm_(learned, self.config.optimiser.clip)
        self.optimiser.step()
        return parts

    def _loss(self, embeddings: Tensor, labels: Tensor, attributes: Tensor | None, collecting: bool) -> LossParts:
        if self.loss.zsr is None:
            return self.loss(embeddings, labels)
        if collecting:
            # Until prototypes are chosen, attributes are flat and carry nothing to regularise.
            metric = self.loss.metric(embeddings, labels)
            # A gradient of zero and none at all differ: Adam decays a parameter that has one.
            idle = sum(0.0 * parameter.sum() for parameter in self.loss.zsr.parameters())
            return LossParts(total=(1 - self.loss.zsr_weight) * metric + idle, metric=metric)
        return self.loss(embeddings, labels, None if attributes is None else attributes.to(embeddings.dtype))
