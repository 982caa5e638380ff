"""The steps of a classifier: one cycle of the learning rate, and on a GPU one captured graph for all steps."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import nn

from gspool.experiments.captured_step import STEPS_BEFORE_CAPTURE, capture_step, working_on
from gspool.experiments.resident.evaluation import autocast, channels_last

if TYPE_CHECKING:
    from jaxtyping import Int64, UInt8
    from torch import Tensor

RISING = 0.2
START, END = 1 / 25, 1 / 250_000


class ClassifierSteps:
    """SGD with Nesterov's momentum, one step at a time; a network and its optimiser belong to one course.

    Args:
        network: gives the logits of images.
        lr: the largest learning rate of the cycle.
        weight_decay: L2 in the gradient.
        steps: of the whole cycle.
        precision: "32-true" or "bf16-mixed".
        captured: whether a GPU repeats the step from a graph; all batches then have one shape.

    Raises:
        CaptureFailedError: on use, if the step cannot be captured.
    """

    def __init__(
        self, network: nn.Module, lr: float, weight_decay: float, steps: int, precision: str, captured: bool
    ) -> None:
        self.network, self.lr, self.steps, self.precision = network, lr, steps, precision
        device = next(network.parameters()).device
        self.stream = torch.cuda.Stream(device) if captured and device.type == "cuda" else None
        # A captured step reads its rate from memory.
        self.rate = torch.tensor(lr, device=device)
        self.optimiser = torch.optim.SGD(
            network.parameters(), self.rate, 0.9, weight_decay=weight_decay, nesterov=True, fused=True
        )
        self.graph: torch.cuda.CUDAGraph | None = None
        self.made = 0
        self.pixels = self.labels = torch.empty(0)

    def at_work(self) -> AbstractContextManager[object]:
        """Give the context that all steps must be made in."""
        return working_on(self.stream)

    def step(self, pixels: UInt8[Tensor, "B 3 H W"], labels: Int64[Tensor, " B"]) -> None:
        """Learn from one batch."""
        self.rate.fill_(one_cycle(self.made, self.steps, self.lr))
        if self.stream is None or self.made < STEPS_BEFORE_CAPTURE:
            self._learn(pixels, labels)
        elif self.graph is None:
            self.pixels, self.labels = pixels.clone(), labels.clone()
            self.graph = capture_step(lambda: self._learn(self.pixels, self.labels), self.stream)
        else:
            self.pixels.copy_(pixels)
            self.labels.copy_(labels)
            self.graph.replay()
        self.made += 1

    def _learn(self, pixels: UInt8[Tensor, "B 3 H W"], labels: Int64[Tensor, " B"]) -> None:
        self.optimiser.zero_grad(set_to_none=True)
        with autocast(pixels.device, self.precision):
            logits = self.network(channels_last(pixels))
        F.cross_entropy(logits.float(), labels).backward()
        self.optimiser.step()


def one_cycle(step: int, steps: int, highest: float) -> float:
    """Give the learning rate of a step: up by half a cosine for a fifth of the steps, down by another for the rest.

    Example:
        >>> [round(one_cycle(step, 11, 1.0), 3) for step in (0, 1, 10)]
        [0.04, 0.936, 0.0]
    """
    top = max(RISING * steps - 1, 0.0)
    if step <= top:
        low, way = START, step / top if top else 1.0
    else:
        low, way = END, 1 - (step - top) / max(steps - 1 - top, 1.0)
    return highest * (low + (1 - low) * (1 - math.cos(math.pi * way)) / 2)
