"""The course of one training on resident data: its steps, its evaluations, the best model so far."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

import torch

from gspool.experiments.resident.captured_learner import CapturedLearner, can_be_captured
from gspool.experiments.resident.evaluation import evaluate_resident
from gspool.experiments.resident.folded_norms import fold_frozen_norms
from gspool.experiments.resident.fused_activations import fuse_activations
from gspool.experiments.resident.fused_stem import fuse_stem
from gspool.experiments.resident.outcome import Ending, Outcome
from gspool.experiments.resident.step import Learner
from gspool.experiments.resident.views import BatchPlan, check_view, training_view
from gspool.models.keras_resnet import KerasResNet50
from gspool.pooling import GSP
from gspool.training.build import build_loss, build_model
from gspool.training.monitor import Monitor

if TYPE_CHECKING:
    from collections.abc import Callable

    from gspool.experiments.resident.images import ResidentSet
    from gspool.training import TrainConfig
    from gspool.training.embed import Evaluation


class DivergedError(RuntimeError):
    """The loss became NaN or infinite."""


class ResidentCourse:
    """The state of one training between its steps."""

    def __init__(
        self,
        settings: TrainConfig,
        train: ResidentSet,
        validation: ResidentSet | None,
        test: ResidentSet,
        device: torch.device,
        model: Any,
    ) -> None:
        self.settings, self.train, self.test, self.device = settings, train, test, device
        self.watched = {"validation": validation, "test": test, "none": None}[settings.trainer.monitor_split]
        if settings.trainer.monitor_split == "validation" and validation is None:
            raise ValueError("trainer.monitor_split is 'validation', but no validation set was given; use 'none'")
        for images in (train, test, *([] if self.watched is None else [self.watched])):
            check_view(images, settings.data)
        model = build_model(settings) if model is None else model
        loss = build_loss(
            settings.loss, train.num_classes, model.out_dim, settings.data.batch_size, settings.trainer.seed
        )
        # Measured beside the plain version in the tests: the same function of the same parameters, and less traffic.
        if settings.model.freeze != "none" and isinstance(getattr(model, "backbone", None), KerasResNet50):
            fold_frozen_norms(model.backbone)
            fuse_activations(model.backbone)
            fuse_stem(model.backbone)
        layout = {"memory_format": torch.channels_last} if device.type == "cuda" else {}
        kind = CapturedLearner if device.type == "cuda" and can_be_captured(model, loss, settings) else Learner
        self.learner = kind(model.to(device, **layout), loss.to(device), settings).train()
        self.model = self.learner.model
        self.plan = BatchPlan(train, settings.data, settings.trainer.seed)
        self.warmup = math.ceil(settings.schedule.warmup_epochs * len(self.plan))
        plateau = settings.schedule.patience if settings.schedule.name == "plateau" else None
        self.monitor = Monitor(settings.trainer.patience, plateau)
        self.size = model.pixels.crop[0] if hasattr(model, "pixels") else train.pixels.shape[-1]
        self.full_rates = [group["lr"] for group in self.learner.optimiser.param_groups]
        self.frozen: str | None = None
        self.step, self.training_seconds = 0, 0.0
        self.curve: list[dict[str, Any]] = []
        self.best: dict[str, torch.Tensor] | None = None
        self.last_loss = torch.zeros(())
        self._since = self._started = time.perf_counter()

    def began(self, started: float) -> None:
        """Set when the run began, for one that goes on: the clock of the training itself starts now."""
        self._started, self._since = started, time.perf_counter()

    def make_step(self) -> None:
        """Freeze or thaw the backbone, set the rate, and learn from the next batch."""
        self._set_rates()
        wanted = "all" if self.step < self.warmup else self.settings.model.freeze
        if wanted != self.frozen:
            self.model.freeze(wanted)
            self.learner.what_learns_changed()
            self.frozen = wanted
        places, seed = self.plan.rows_on_cpu_of(self.step), self.settings.trainer.seed
        seen = training_view(self.train, places, self.settings.data, self.size, seed, self.step)
        labels = self.train.labels[self.plan.rows_of(self.step)]
        self.last_loss = self.learner.learn(seen, labels, self.step).total.detach()
        self.step += 1

    def _set_rates(self) -> None:
        if self.settings.schedule.name == "cosine":
            from gspool.training.module import cosine_factor

            factor = cosine_factor(self.step, self.settings.trainer.max_steps, self.settings.schedule.ramp)
            for group, rate in zip(self.learner.optimiser.param_groups, self.full_rates, strict=True):
                group["lr"] = factor * rate

    def evaluate(self, say: Callable[[str], None] | None) -> None:
        """Measure the watched set, keep the model where it is the best so far, lower the rate on a plateau."""
        loss = float(self.last_loss)
        if not math.isfinite(loss):
            raise DivergedError(f"the loss is {loss} at step {self.step}; lower optimiser.lr, or train in 32-true")
        # Reading the loss has waited for the device, so the clock shows training alone.
        self.training_seconds += time.perf_counter() - self._since
        if self.watched is not None:
            measured = self._measure(self.watched)
            verdict = self.monitor.judge(self.step, measured.metrics[self.settings.trainer.monitor])
            if verdict.lr_falls:
                for group in self.learner.optimiser.param_groups:
                    group["lr"] *= self.settings.schedule.factor
            if verdict.improved:
                self.best = {name: value.clone() for name, value in self.model.state_dict().items()}
            row = {
                "step": self.step,
                "seconds": time.perf_counter() - self._started,
                "loss": loss,
                "entropy": measured.entropy,
                **self._learned(),
            }
            self.curve.append({**row, **{name: measured.metrics[name] for name in ("p@1", "map@r")}})
            if say is not None:
                say(f"step {self.step}  loss {loss:.4f}  map@r {100 * measured.metrics['map@r']:.2f}")
        self._since = time.perf_counter()

    def _measure(self, images: ResidentSet, looks: bool = False) -> Evaluation:
        trainer, data = self.settings.trainer, self.settings.data
        ks = self.settings.output.ks
        return evaluate_resident(self.model, images, data, self.size, precision=trainer.precision, ks=ks, looks=looks)

    def _learned(self) -> dict[str, float]:
        """Give mu and epsilon of the GSP layer, learned or not."""
        layers = [part for part in self.model.modules() if isinstance(part, GSP)]
        values = {name: getattr(layer, name) for layer in layers for name in ("mu", "epsilon")}
        return {name: float(torch.as_tensor(value).detach()) for name, value in values.items()}

    def finish(self, ending: Ending, started: float) -> Outcome:
        """Restore the best model and measure it on the test set."""
        if self.best is not None:
            self.model.load_state_dict(self.best)
        self.model.freeze(self.settings.model.freeze)
        measured = self._measure(self.test, looks=True)
        asks = self.test.asks
        vectors = measured.embeddings
        images = self.step * self.settings.data.batch_size
        return Outcome(
            metrics=dict(measured.metrics),
            validation=self.monitor.best_value if self.best is not None else None,
            steps=self.step,
            best_step=self.monitor.best_step if self.best is not None else self.step,
            ending=ending,
            entropy=measured.entropy,
            seconds=time.perf_counter() - started,
            images_per_second=images / max(self.training_seconds, 1e-9),
            curve=self.curve,
            learned=self._learned(),
            embeddings=(vectors if asks is None else vectors[asks]).cpu(),
            gallery=None if asks is None else vectors[~asks].cpu(),
            mean_weights=measured.mean_weights,
        )
