"""What happens between the steps of a run: logging, evaluation, checkpoints, stopping."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from gspool.training.checkpoint import BEST, LAST, write_checkpoint
from gspool.training.embed import evaluate_images
from gspool.training.engine import lightning
from gspool.training.gather import is_distributed, share_buffers
from gspool.training.monitor import Monitor
from gspool.training.run_folder import log

if TYPE_CHECKING:
    from gspool.data import ImageSet
    from gspool.losses import LossParts
    from gspool.terminal.bar import WorkBar
    from gspool.training.config import TrainConfig
    from gspool.training.interruption import StopRequest
    from gspool.training.metrics_log import MetricsLog
    from gspool.training.module import EmbeddingTraining

Callback: Any = lightning().Callback


class NonFiniteLossError(RuntimeError):
    """The loss became NaN or infinite; the last good checkpoint is kept."""


class Course(Callback):
    """Count steps, evaluate, keep the best and the last state, stop in time.

    Lightning's own loops for evaluation, checkpoints and early stopping count epochs and batches; a run here is one
    stream of steps that may begin anywhere, so that these few decisions are made in one place and saved with it.
    """

    def __init__(
        self,
        config: TrainConfig,
        folder: Path,
        train: ImageSet,
        watched: ImageSet | None,
        monitor: Monitor,
        request: StopRequest,
        bar: WorkBar,
        metrics: MetricsLog | None,
        state: dict[str, Any] | None,
    ) -> None:
        self.config, self.folder, self.train, self.watched = config, folder, train, watched
        self.monitor, self.request, self.bar, self.metrics, self.state = monitor, request, bar, metrics, state
        self.interrupted = False
        self.since = time.perf_counter()
        self.last_saved = -1

    def on_train_start(self, trainer: Any, module: EmbeddingTraining) -> None:
        """Put optimiser and scaler back where the checkpoint left them."""
        if self.state is not None:
            trainer.optimizers[0].load_state_dict(self.state["optimizer"])
            trainer.precision_plugin.load_state_dict(self.state["precision"])
        self.since = time.perf_counter()

    def on_train_batch_end(self, trainer: Any, module: EmbeddingTraining, *ignored: Any) -> None:
        """Look at the step that was just made, and do what is due."""
        settings = self.config.trainer
        parts = module.parts
        if parts is None:
            return
        step = module.step + 1
        due = step % settings.evaluate_every == 0 or step == settings.max_steps
        saving = due or (settings.checkpoint_every > 0 and step % settings.checkpoint_every == 0)
        logging = step % settings.log_every == 0
        # Reading a loss makes a GPU wait, so it is read when something depends on it; the CPU has it at hand.
        if module.device.type == "cpu" or logging or saving:
            self._refuse_nonfinite(module, parts, step)
        module.step = step
        note = self._log_step(trainer, parts, step) if logging else ""
        if due and self.watched is not None:
            self._evaluate(trainer, module, self.watched, step)
        stop = self._all_agree(self.request.asked)
        if saving or stop or self.monitor.stopped:
            self.save(trainer, module)
        self.interrupted = stop and step < settings.max_steps and not self.monitor.stopped
        trainer.should_stop = stop or self.monitor.stopped
        self.bar.advance(note)

    def _refuse_nonfinite(self, module: EmbeddingTraining, parts: LossParts, step: int) -> None:
        value = float(parts.total.detach())
        if math.isfinite(value):
            return
        pieces = {"metric loss": parts.metric, "zero-shot loss": parts.zero_shot}
        told = ", ".join(f"{name} {float(part.detach())}" for name, part in pieces.items() if part is not None)
        broken = [name for name, each in module.named_parameters() if not torch.isfinite(each.detach()).all()]
        rows = [] if module.rows is None else module.rows.tolist()[:4]
        images = ", ".join(self.train.describe(row) for row in rows)
        kept = self.folder / LAST
        where = f"parameters that are not finite: {', '.join(broken[:3])}" if broken else "all parameters are finite"
        message = (
            f"the loss is {value} at step {step} ({told}; {where}; the batch begins with {images}). "
            + (f"The last good state is kept in {kept}. " if kept.exists() else "No checkpoint had been written yet. ")
            + "Lower optimiser.lr, keep gradients in bounds with optimiser.clip, or train in a wider precision"
        )
        log.error(message)
        raise NonFiniteLossError(message)

    def _log_step(self, trainer: Any, parts: LossParts, step: int) -> str:
        """Write a row of metrics, and give a note for the bar."""
        now = time.perf_counter()
        rate = self.config.trainer.log_every / max(now - self.since, 1e-9)
        self.since = now
        values = {
            "loss": float(parts.total.detach()),
            "loss_metric": float(parts.metric.detach()),
            "loss_zero_shot": None if parts.zero_shot is None else float(parts.zero_shot.detach()),
            "lr": trainer.optimizers[0].param_groups[0]["lr"],
            "steps_per_second": rate,
        }
        if self.metrics is not None:
            self.metrics.add(step, values)
        return f"loss {values['loss']:.3f}"

    def _evaluate(self, trainer: Any, module: EmbeddingTraining, images: ImageSet, step: int) -> None:
        share_buffers(module.model)
        workers = self.config.data.workers
        evaluation = evaluate_images(module.model, images, ks=self.config.output.ks, workers=workers)
        monitored = self.config.trainer.monitor
        verdict = self.monitor.judge(step, evaluation.metrics[monitored])
        if verdict.lr_falls:
            for group in trainer.optimizers[0].param_groups:
                group["lr"] *= self.config.schedule.factor
        if verdict.improved and trainer.is_global_zero:
            write_checkpoint(self.folder / BEST, {"step": step, "model": module.model.state_dict()})
        values = {name: evaluation.metrics[name] for name in ("p@1", "p@r", "map@r")}
        if self.metrics is not None:
            self.metrics.add(step, {**values, "weights_entropy": evaluation.entropy})
        told = "  ".join(f"{name} {100 * value:.2f}" for name, value in values.items())
        flat = "" if evaluation.entropy is None else f"  weights' entropy {evaluation.entropy:.4f}"
        line = f"step {step}  {images.split} {told}{flat}{'  best so far' if verdict.improved else ''}"
        log.info(line)
        self.bar.say(line)
        self.since = time.perf_counter()

    def _all_agree(self, asked: bool) -> bool:
        """Let one process that was asked to stop stop all of them; they would wait for it for ever."""
        if not is_distributed():
            return asked
        votes: list[bool] = [False] * torch.distributed.get_world_size()
        torch.distributed.all_gather_object(votes, asked)
        return any(votes)

    def save(self, trainer: Any, module: EmbeddingTraining) -> None:
        """Write the last checkpoint: all that the next step depends on."""
        if self.last_saved == module.step or not trainer.is_global_zero:
            return
        write_checkpoint(
            self.folder / LAST,
            {
                "step": module.step,
                "module": module.state_dict(),
                "optimizer": trainer.optimizers[0].state_dict(),
                "precision": trainer.precision_plugin.state_dict(),
                "monitor": self.monitor.state_dict(),
            },
        )
        self.last_saved = module.step
