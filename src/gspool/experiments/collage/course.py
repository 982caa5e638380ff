"""The course of one training: thousands of tiny steps, on a GPU replayed as one captured graph each.

A head on stored maps is so small that a step is over before Python has described the next one; replaying a CUDA graph
takes Python out. On a CPU the same steps are made one by one, and equal those of `train_resident`.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn

from gspool.experiments.captured_step import STEPS_BEFORE_CAPTURE, capture_step, working_on
from gspool.experiments.collage.measure import measured
from gspool.experiments.crew import Made, steps_under_way
from gspool.experiments.resident.views import BatchPlan
from gspool.experiments.steady_losses import steady_parts
from gspool.pooling.warm_start import WarmStart
from gspool.training.build import build_loss, build_optimiser
from gspool.training.monitor import Monitor

if TYPE_CHECKING:
    from torch import Tensor

    from gspool.evaluation import RetrievalMetrics
    from gspool.experiments.collage.maps import Splits
    from gspool.training import TrainConfig


class CourseResult(NamedTuple):
    """Figures of the best epoch by validation, and how it went."""

    metrics: RetrievalMetrics
    validation: float
    entropy: float | None
    steps: int
    best_step: int
    seconds: float
    steps_per_second: float
    curve: list[float]
    captured: bool


class Course(nn.Module):
    """A model, its loss, its optimiser, and the batches that it learns from.

    Args:
        settings: of the run.
        splits: what is learned from, watched and measured.
        device: where they are.
        model: what learns.
        captured: whether steps on a GPU are replayed from a graph.
        mixed: whether a GPU embeds in bf16 while it learns; pooling by GSP, losses and figures are in float32 always.

    Raises:
        CaptureFailedError: on use, if a step cannot be captured.
    """

    def __init__(
        self,
        settings: TrainConfig,
        splits: Splits,
        device: str,
        model: Any,
        captured: bool = True,
        mixed: bool = False,
    ) -> None:
        super().__init__()
        self.settings, self.splits, self.device = settings, splits, torch.device(device)
        self.model = model.to(self.device)
        batch_size, seed = settings.data.batch_size, settings.trainer.seed
        self.loss = build_loss(settings.loss, splits.train.num_classes, model.out_dim, batch_size, seed).to(self.device)
        self.optimiser = build_optimiser(settings.optimiser, self)
        self.plan = BatchPlan(splits.train, settings.data, seed)
        self.places = torch.zeros(batch_size, dtype=torch.int64, device=self.device)
        self.warm_starts = [part for part in model.modules() if isinstance(part, WarmStart)]
        self.graph: torch.cuda.CUDAGraph | None = None
        self.stream = torch.cuda.Stream(self.device) if self.device.type == "cuda" else None
        self.captured = captured and self.stream is not None
        self.mixed = mixed and self.stream is not None
        self.steps_alone = 0
        if self.stream is not None:
            for group in self.optimiser.param_groups:
                # A captured step reads its rate from memory, where a plateau can lower it.
                group.update(lr=torch.tensor(group["lr"], device=self.device), capturable=True, fused=True)
                group["foreach"] = False

    def run(self) -> CourseResult:
        """Train to the end, restore the best epoch, measure it on test classes."""
        trainer = self.settings.trainer
        title = f"{self.settings.loss.name} {self.settings.model.pooling}, seed {trainer.seed}"
        with working_on(self.stream), steps_under_way(title, 0, trainer.max_steps) as made:
            return self._run(made)

    def _run(self, made: Made) -> CourseResult:
        trainer, schedule = self.settings.trainer, self.settings.schedule
        started, training = time.perf_counter(), 0.0
        monitor = Monitor(trainer.patience, schedule.patience)
        best: dict[str, Tensor] = {}
        curve: list[float] = []
        step = 0
        self.train()
        torch.manual_seed(trainer.seed)
        while step < trainer.max_steps and not monitor.stopped:
            since = time.perf_counter()
            for _ in range(trainer.evaluate_every):
                self.places.copy_(self.plan.rows_of(step))
                self.step()
                step += 1
                made(f"MAP@R {100 * curve[-1]:.2f}" if curve else "")
            if self.stream is not None:
                self.stream.synchronize()
            training += time.perf_counter() - since
            curve.append(measured(self.model, self.splits.validation).metrics["map@r"])
            verdict = monitor.judge(step, curve[-1])
            if verdict.improved:
                best = {name: value.clone() for name, value in self.model.state_dict().items()}
            if verdict.lr_falls:
                for group in self.optimiser.param_groups:
                    group["lr"] *= schedule.factor
        if best:
            self.model.load_state_dict(best)
        found = measured(self.model, self.splits.test)
        return CourseResult(
            found.metrics,
            monitor.best_value,
            found.entropy,
            step,
            monitor.best_step,
            time.perf_counter() - started,
            step / max(training, 1e-9),
            curve,
            self.graph is not None,
        )

    def step(self) -> None:
        """Make one step on the images at ``places``."""
        if self.graph is not None:
            self.graph.replay()
            return
        collecting = any(part.collecting for part in self.warm_starts)
        if self.captured and self.stream is not None and not collecting and self.steps_alone >= STEPS_BEFORE_CAPTURE:
            self.graph = capture_step(lambda: self._learn(collecting), self.stream)
            return
        self.steps_alone = 0 if collecting else self.steps_alone + 1
        self._learn(collecting)

    def _learn(self, collecting: bool) -> None:
        self.optimiser.zero_grad(set_to_none=True)
        train = self.splits.train
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.mixed):
            embedded = self.model.embed(train.pixels[train.rows[self.places]])
        labels = train.labels[self.places]
        # Until prototypes are chosen, attributes are flat and carry nothing to regularise.
        attributes = None if collecting else embedded.attributes
        total = steady_parts(self.loss, embedded.embedding, labels, attributes).total
        if self.loss.zsr is not None and attributes is None:
            total = (1 - self.loss.zsr_weight) * total
        total.backward()
        self.optimiser.step()
