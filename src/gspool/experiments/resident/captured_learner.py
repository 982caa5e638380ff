"""A learner whose steps a GPU repeats from one CUDA graph: Python describes a step once, and no longer holds it up."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from gspool.experiments.captured_step import STEPS_BEFORE_CAPTURE, CaptureFailedError, capture_step, working_on
from gspool.experiments.resident.step import Learner
from gspool.experiments.steady_losses import STEADY, steady_parts
from gspool.losses import LossParts
from gspool.training.stream import mixed_seed

if TYPE_CHECKING:
    from jaxtyping import Int64, UInt8
    from torch import Tensor

    from gspool.losses import MetricLoss
    from gspool.training import TrainConfig


def can_be_captured(model: nn.Module, loss: MetricLoss, config: TrainConfig) -> bool:
    """Say whether a step is the same work whatever the values, and draws its numbers in one place: the loss."""
    draws = any(isinstance(part, nn.Dropout) and part.p > 0 for part in model.modules())
    return type(loss.metric).__name__ in STEADY and not draws and config.schedule.name != "cosine"


class CapturedLearner(Learner):
    """A learner that makes some steps by itself, writes the next one down, and has the GPU repeat it.

    Steps are those of `Learner`, with the losses' twins of fixed shapes. What is frozen and whether prototypes have
    been chosen is part of what was written down: where it changes, steps are made one by one again and written anew. A
    step that cannot be written down is made one by one, and standard error says so once.

    All steps must be made on one stream that is not the default one, such as `own_stream` gives.
    """

    def __init__(self, model: Any, loss: MetricLoss, config: TrainConfig) -> None:
        super().__init__(model, loss, config)
        self.graph: torch.cuda.CUDAGraph | None = None
        self.refused = False
        self._images = self._labels = torch.empty(0)
        self._parts: LossParts | None = None
        for group in self.optimiser.param_groups:
            group["capturable"] = next(self.parameters()).is_cuda

    def what_learns_changed(self) -> None:
        """Forget the step that was written down."""
        super().what_learns_changed()
        self.graph = None

    def learn(self, images: UInt8[Tensor, "B 3 H W"], labels: Int64[Tensor, " B"], step: int) -> LossParts:
        """Make one step; everything random in it is drawn from (seed, step)."""
        if self.graph is not None:
            self._images.copy_(images)
            self._labels.copy_(labels)
            # As in `Learner`: embedding draws nothing, so the seed of the loss can be set before it.
            torch.manual_seed(mixed_seed(self.config.trainer.seed, step))
            self.graph.replay()
            assert self._parts is not None
            return self._parts
        if self.steps_alone < STEPS_BEFORE_CAPTURE or self.collecting or self.refused:
            return super().learn(images, labels, step)
        return self._capture(images, labels, step)

    def _capture(self, images: UInt8[Tensor, "B 3 H W"], labels: Int64[Tensor, " B"], step: int) -> LossParts:
        self._images, self._labels = images.clone(), labels.clone()
        for group in self.optimiser.param_groups:
            # A step that was written down reads its rate from memory, where a plateau can lower it.
            group["lr"] = torch.as_tensor(group["lr"], device=images.device)
        torch.manual_seed(mixed_seed(self.config.trainer.seed, step))
        try:
            look_up = None if self.rounded is None else self.rounded.look_up_gradients
            self.graph = capture_step(self._whole_step, torch.cuda.current_stream(images.device), look_up)
        except CaptureFailedError as wrong:
            self.refused = True
            print(f"steps are made one by one: {wrong}", file=sys.stderr, flush=True)
            return super().learn(images, labels, step)
        assert self._parts is not None
        return self._parts

    def _whole_step(self) -> None:
        embedded = self._embed(self._images)
        self._parts = self._descend(self._loss(embedded.embedding, self._labels, embedded.attributes, collecting=False))

    def _loss(self, embeddings: Tensor, labels: Tensor, attributes: Tensor | None, collecting: bool) -> LossParts:
        if collecting or (self.loss.zsr is not None and attributes is None):
            return super()._loss(embeddings, labels, attributes, collecting)
        rounded = None if attributes is None else attributes.to(embeddings.dtype)
        return steady_parts(self.loss, embeddings, labels, rounded)


def own_stream(device: torch.device) -> AbstractContextManager[object]:
    """Give a context with a stream of its own, on a GPU."""
    return working_on(torch.cuda.Stream(device) if device.type == "cuda" else None)
