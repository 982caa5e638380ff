"""The training loop: steps, learning rate, evaluation, checkpoints, stopping. Everything that trains runs through it.

A `Task` says what is trained; Fabric says where. Everything random in a step is a function of the seed and the step, so
that a run that was interrupted goes on bit for bit.
"""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Generator, Iterable, Mapping
from contextlib import ExitStack, closing, nullcontext
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

import torch
from torch import nn

from gspool.evaluation.entropy import FLAT_ENTROPY
from gspool.terminal.bar import WorkBar, work_bar
from gspool.training.checkpoint import BEST, LAST, CheckpointError, read_checkpoint, read_newest, write_checkpoint
from gspool.training.ema import WeightAverage
from gspool.training.metrics_log import MetricsLog
from gspool.training.monitor import Monitor
from gspool.training.processes import (
    StopRequest,
    TerminatedError,
    TrainingInterruptedError,
    any_process,
    is_one_of_several,
    quiet,
    stop_on_signal,
    wait_for_all,
)
from gspool.training.run_folder import log

if TYPE_CHECKING:
    from gspool.losses import LossParts
    from gspool.training.config import ScheduleConfig, TrainerConfig

Ending = Literal["max_steps", "patience", "time"]
# The learning rate begins its rise at this share of the full rate.
LOWEST = 0.04
# Steps between two looks of several GPUs at each other's stop requests: every look waits for the device.
AGREE_EVERY = 10
# The step that tells how long the others will take: the first ones also allocate memory.
TIMED = 3
STATE = ("step", "module", "optimizer", "precision", "monitor")


class NonFiniteLossError(RuntimeError):
    """The loss became NaN or infinite; the last good checkpoint is kept."""


class Task(Protocol):
    """What `run_loop` trains. Subclass it: only the attributes with a value here and `before_step` are optional.

    ``module`` holds everything with parameters or state, the model and the loss; where it has parts called ``model``
    and ``loss``, these are kept as the best. ``clip`` bounds the norm of the gradient (0: no bound). With
    ``keeps_start`` the state before the first step is evaluated too, and kept where no later one is better.
    ``measures`` names the columns of metrics.csv that `evaluate` fills.
    """

    module: nn.Module
    clip: float = 0.0
    keeps_start: bool = False
    measures: tuple[str, ...] = ("p@1", "p@r", "map@r", "weights_entropy")

    def optimiser(self) -> torch.optim.Optimizer:
        """Return the optimiser of ``module``'s parameters."""
        ...

    def batches(self, first: int, last: int) -> Iterable[Any]:
        """Return the batches of steps ``first`` to ``last - 1``, each a function of (seed, step) alone."""
        ...

    def before_step(self, step: int) -> None:
        """Prepare a step: freeze or thaw, constrain parameters."""
        return

    def loss(self, batch: Any, step: int) -> LossParts:
        """Compute the loss of a batch; called in the precision of the trainer."""
        ...

    def evaluate(self) -> Mapping[str, float]:
        """Measure what the monitor watches and metrics.csv gets; {} if nothing is watched."""
        ...

    def describe(self, batch: Any) -> str:
        """Return a few words about a batch, for the message about a loss that is not finite."""
        return ""


class LoopOutcome(NamedTuple):
    """How a training went. ``task.module`` holds the best state.

    ``best_value`` is None where nothing was watched, and ``best_step`` the last step then. ``curve`` has one row per
    evaluation: step, loss and everything that was measured. ``seconds`` is all of the run, over interruptions;
    ``training_seconds`` leaves evaluations out.
    """

    steps: int
    best_step: int
    best_value: float | None
    ending: Ending
    curve: list[dict[str, Any]]
    seconds: float
    training_seconds: float


class _Step(nn.Module):
    """The forward pass of a step as a module, for Fabric to wrap in precision and DDP."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        self.module = task.module
        self._task = [task]  # in a list, so that a task that is a module is not registered twice
        self.parts: LossParts | None = None

    def forward(self, batch: Any, step: int) -> torch.Tensor:
        self.parts = self._task[0].loss(batch, step)
        return self.parts.total


def run_loop(
    task: Task,
    fabric: Any,
    trainer: TrainerConfig,
    schedule: ScheduleConfig,
    folder: Path | None = None,
    title: str = "",
    *,
    request: StopRequest | None = None,
) -> LoopOutcome:
    """Train a task to its last step, or until it stops getting better, or time is up.

    Args:
        task: what is trained.
        fabric: a launched Fabric, such as `make_fabric` returns for one device.
        trainer: max_steps, evaluate_every, checkpoint_every, patience, monitor, ema, max_seconds, log_every, progress.
        schedule: how the learning rate changes.
        folder: where last.pt, previous.pt, best.pt and metrics.csv go, and where a run goes on; None keeps nothing.
        title: what the progress bar calls the run.
        request: a stop request that is already listened to; without one, the loop listens for itself.

    Raises:
        TrainingInterruptedError: after Ctrl-C or SIGTERM; everything is saved.
        NonFiniteLossError: if the loss becomes NaN or infinite.
        CheckpointError: if a checkpoint cannot be written or read, or does not fit.
    """
    with ExitStack() as opened:
        if request is None:
            request = opened.enter_context(stop_on_signal())
        loop = _Loop(task, fabric, trainer, schedule, folder, request)
        log.info("%s from step %d", title, loop.step)
        if loop.step < trainer.max_steps and not loop.monitor.stopped:
            shown = trainer.progress and fabric.is_global_zero
            loop.bar = opened.enter_context(work_bar(title, loop.step, trainer.max_steps, shown))
            if folder is not None and fabric.is_global_zero:
                loop.metrics = opened.enter_context(closing(MetricsLog(folder, loop.step, task.measures)))
            request.immediate = False
            if loop.step == 0 and task.keeps_start:
                loop.evaluate()
            loop.run()
            request.immediate = fabric.world_size == 1 and not is_one_of_several()
        return loop.finish()


class _Loop:
    """The state of a run between two steps."""

    def __init__(
        self,
        task: Task,
        fabric: Any,
        trainer: TrainerConfig,
        schedule: ScheduleConfig,
        folder: Path | None,
        request: StopRequest,
    ) -> None:
        self.task, self.fabric, self.trainer, self.schedule = task, fabric, trainer, schedule
        self.folder, self.request = folder, request
        self.bar: WorkBar | None = None
        self.metrics: MetricsLog | None = None
        self.monitor = Monitor(trainer.patience, schedule.patience if schedule.name == "plateau" else None)
        self.step, self.first, self.saved = 0, 0, -1
        self.curve: list[dict[str, Any]] = []
        self.ending: Ending = "max_steps"
        self.best: dict[str, Any] | None = None
        self.timed = self.started = self.since_log = self.since_evaluation = time.perf_counter()
        self.evaluated = self.seconds_before = self.training_seconds = 0.0
        # Model and loss may have been made on different devices, of which Fabric would warn.
        task.module.to(fabric.device)
        optimiser = task.optimiser()
        for group in optimiser.param_groups:
            group["full_lr"] = group["lr"]
        task.module.train()
        with quiet():
            self.forward, self.optimiser = fabric.setup(_Step(task), optimiser)
        if fabric.device.type == "cuda" and isinstance(optimiser, torch.optim.Adam | torch.optim.AdamW):
            for group in optimiser.param_groups:
                group["fused"], group["foreach"] = True, False  # one kernel instead of a dozen
        self.average = WeightAverage(task.module, trainer.ema) if trainer.ema else None
        if folder is not None:
            self._resume(folder)

    @property
    def kept(self) -> dict[str, nn.Module]:
        """What the best checkpoint keeps: the model, and its loss where it has one."""
        module: Any = self.task.module
        return {"model": getattr(module, "model", module), **({"loss": module.loss} if hasattr(module, "loss") else {})}

    def _resume(self, folder: Path) -> None:
        state = read_newest(folder, STATE)
        if state is None:
            return
        try:
            self.task.module.load_state_dict(state["module"])
            self.optimiser.load_state_dict(state["optimizer"])
            self.fabric.strategy.precision.load_state_dict(state["precision"])
            self.monitor.load_state_dict(state["monitor"])
            if self.average is not None:
                self.average.load_state_dict(state["ema"])
        except (RuntimeError, ValueError, KeyError, TypeError) as error:
            raise CheckpointError(
                f"the checkpoint of {folder} does not fit this run ({str(error).splitlines()[0]}); "
                "it was written by other settings: train in another folder"
            ) from error
        self.step = self.first = self.saved = int(state["step"])
        self.curve = list(state.get("curve", []))
        self.seconds_before = float(state.get("seconds", 0.0))
        self.training_seconds = float(state.get("training_seconds", 0.0))
        if self.monitor.has_best:
            # Now, and not when all the work is done.
            try:
                read_checkpoint(folder / BEST, ("model",))
            except CheckpointError as error:
                raise CheckpointError(
                    f"{error}. It held the best model of this run, from step {self.monitor.best_step}: put a copy "
                    f"back, or delete {folder} to start again"
                ) from error

    def run(self) -> None:
        """Make the steps that are left."""
        trainer, fabric = self.trainer, self.fabric
        batches = self.task.batches(self.step, trainer.max_steps)
        with closing(batches) if isinstance(batches, Generator) else nullcontext():  # ends threads that read ahead
            for batch in batches:
                self.timed = time.perf_counter()
                set_learning_rate(self.optimiser.param_groups, self.schedule, self.step, trainer.max_steps)
                self.task.before_step(self.step)
                total = self.forward(fabric.to_device(batch), self.step)
                self.optimiser.zero_grad()
                fabric.backward(total)
                if self.task.clip:
                    fabric.clip_gradients(
                        self.forward, self.optimiser, max_norm=self.task.clip, error_if_nonfinite=False
                    )
                self.optimiser.step()
                if self.average is not None:
                    self.average.update()
                self.step += 1
                if self._after_step(batch):
                    return

    def _after_step(self, batch: Any) -> bool:
        """Log, evaluate, save where due; return whether to stop."""
        trainer, step = self.trainer, self.step
        last = step == trainer.max_steps
        due = last or step % trainer.evaluate_every == 0
        saving = due or (trainer.checkpoint_every > 0 and step % trainer.checkpoint_every == 0)
        logging = step % trainer.log_every == 0
        # Reading the loss makes a GPU wait, so it is read when something depends on it.
        if self.fabric.device.type == "cpu" or logging or saving:
            self._check_finite(batch)
        note = self._log_step() if logging else ""
        if due:
            self.evaluate()
        signum = 0
        if due or self.fabric.device.type == "cpu" or step % AGREE_EVERY == 0:
            signum = any_process(self.request.signum, self.fabric.device)
        over = due and bool(trainer.max_seconds) and bool(any_process(self._over(), self.fabric.device))
        if saving or signum or self.monitor.stopped:
            self._save()
        if self.bar is not None:
            self.bar.advance(note)
            if step == self.first + TIMED and self.fabric.device.type == "cpu":
                self.bar.say(self._expected_time())
        if last:
            return True
        if self.monitor.stopped:
            return True
        if over:
            self.ending = "time"
            return True
        if signum:
            if self.folder is None:  # nothing to resume
                raise KeyboardInterrupt if signum == signal.SIGINT else TerminatedError
            raise TrainingInterruptedError(self.folder, step, signum)
        return False

    def _expected_time(self) -> str:
        """Return how long the steps that are left will take without a GPU, by the last of the first steps."""
        a_step, left = time.perf_counter() - self.timed, self.trainer.max_steps - self.step
        limit = f", of at most {duration(self.trainer.max_seconds)}" if self.trainer.max_seconds else ""
        return (
            f"a step takes {a_step:.2g} s on this CPU: about {duration(a_step * left)} for the other {left:,} steps"
            f"{limit}, and {math.ceil(left / self.trainer.evaluate_every)} evaluations"
        )

    def _over(self) -> int:
        """Check whether the time is up, or would be before the next evaluation."""
        elapsed = self._elapsed()
        interval, self.evaluated = elapsed - self.evaluated, elapsed
        return int(self.fabric.is_global_zero and elapsed + interval > self.trainer.max_seconds)

    def _elapsed(self) -> float:
        """Seconds of this call; a run that was resumed has its time anew."""
        return time.perf_counter() - self.started

    def _check_finite(self, batch: Any) -> None:
        parts = self.forward.module.parts
        value = float(parts.total.detach())
        if math.isfinite(value):
            return
        pieces = {"metric loss": parts.metric, "zero-shot loss": parts.zero_shot}
        values = ", ".join(f"{name} {float(part.detach())}" for name, part in pieces.items() if part is not None)
        broken = [name for name, each in self.task.module.named_parameters() if not each.detach().isfinite().all()]
        where = f"parameters that are not finite: {', '.join(broken[:3])}" if broken else "all parameters are finite"
        kept = None if self.folder is None else self.folder / LAST
        has_kept = kept is not None and kept.exists()
        message = (
            f"the loss is {value} at step {self.step} ({values}; {where}; {self.task.describe(batch)}). "
            + (f"The last good state is kept in {kept}. " if has_kept else "No checkpoint had been written yet. ")
            + "Lower optimiser.lr, bound gradients with optimiser.clip, or train in a wider precision"
        )
        log.error(message)
        raise NonFiniteLossError(message)

    def _log_step(self) -> str:
        """Write a row of metrics.csv and return a note for the progress bar."""
        parts, now = self.forward.module.parts, time.perf_counter()
        values = {
            "loss": float(parts.total.detach()),
            "loss_metric": float(parts.metric.detach()),
            "loss_zero_shot": None if parts.zero_shot is None else float(parts.zero_shot.detach()),
            "lr": self.optimiser.param_groups[0]["lr"],
            "steps_per_second": self.trainer.log_every / max(now - self.since_log, 1e-9),
        }
        self.since_log = now
        if self.metrics is not None:
            self.metrics.add(self.step, values)
        return f"loss {values['loss']:.3f}"

    def evaluate(self) -> None:
        """Measure, keep the model if it is the best so far, lower the learning rate on a plateau."""
        parts = self.forward.module.parts
        loss = None if parts is None else float(parts.total.detach())  # waits for the device: the clock is of training
        self.training_seconds += time.perf_counter() - self.since_evaluation
        with nullcontext() if self.average is None else self.average.in_place():
            measured = dict(self.task.evaluate())
            verdict = self.monitor.judge(self.step, measured[self.trainer.monitor]) if measured else None
            if verdict is not None and verdict.improved:
                self._keep_best()
        if verdict is not None:
            if verdict.lr_falls:
                for group in self.optimiser.param_groups:
                    group["lr"] *= self.schedule.factor
            if self.metrics is not None:
                self.metrics.add(self.step, measured)
            self.curve.append({"step": self.step, "loss": loss, **measured})
            names = [name for name in self.task.measures if name in measured]
            shown = "  ".join(f"{name} {_shown(name, measured[name])}" for name in names)
            line = f"step {self.step}  {shown}{'  best so far' if verdict.improved else ''}"
            log.info(line)
            if self.bar is not None:
                self.bar.say(line)
        self.since_log = self.since_evaluation = time.perf_counter()

    def _keep_best(self) -> None:
        content = {"step": self.step, **{name: part.state_dict() for name, part in self.kept.items()}}
        if self.folder is None:
            self.best = deepcopy(content)
        elif self.fabric.is_global_zero:
            write_checkpoint(self.folder / BEST, content)

    def _save(self) -> None:
        """Write the last checkpoint: all that the next step depends on."""
        if self.folder is None or self.saved == self.step or not self.fabric.is_global_zero:
            return
        content = {
            "step": self.step,
            "module": self.task.module.state_dict(),
            "optimizer": self.optimiser.state_dict(),
            "precision": self.fabric.strategy.precision.state_dict(),
            "monitor": self.monitor.state_dict(),
            "curve": self.curve,
            "seconds": self.seconds_before + self._elapsed(),
            "training_seconds": self.training_seconds,
            **({} if self.average is None else {"ema": self.average.state_dict()}),
        }
        write_checkpoint(self.folder / LAST, content)
        self.saved = self.step

    def finish(self) -> LoopOutcome:
        """Restore the best model and return how the run went."""
        watched = self.monitor.has_best
        if watched and self.folder is not None:
            wait_for_all()  # the first process may still be writing the best model
            self.best = read_checkpoint(self.folder / BEST, ("model",))
        if self.best is not None:
            for name, part in self.kept.items():
                if name in self.best:  # version 0.1 kept no loss
                    part.load_state_dict(self.best[name])
        elif self.average is not None:
            self.average.exchange()
        return LoopOutcome(
            steps=self.step,
            best_step=self.monitor.best_step if watched else self.step,
            best_value=self.monitor.best_value if watched else None,
            ending="patience" if self.monitor.stopped else self.ending,
            curve=self.curve,
            seconds=self.seconds_before + self._elapsed(),
            training_seconds=self.training_seconds,
        )


def duration(seconds: float) -> str:
    """Write a duration in one or two units.

    Example:
        >>> duration(0.2), duration(8), duration(200), duration(9_000)
        ('1 s', '8 s', '3 min', '2 h 30 min')
    """
    seconds = max(seconds, 1)
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


def _shown(name: str, value: float) -> str:
    if name != "weights_entropy":
        return f"{100 * value:.2f}"
    return f"{value:.4f}{' (flat, as average pooling)' if value > FLAT_ENTROPY else ''}"


def set_learning_rate(groups: Iterable[dict[str, Any]], schedule: ScheduleConfig, step: int, steps: int) -> None:
    """Set the learning rate of a step in every group, if the schedule is a function of the step."""
    if schedule.name in ("cosine", "one-cycle"):
        for group in groups:
            group["lr"] = group["full_lr"] * rate_factor(schedule.name, step, steps, schedule.ramp)


def rate_factor(name: str, step: int, steps: int, ramp: float) -> float:
    """Return the share of the full learning rate: a linear rise over ``ramp`` of the steps, then a fall to 0.

    The fall of "cosine" is half a cosine, that of "one-cycle" a line.

    Example:
        >>> [round(rate_factor("cosine", step, 100, 0.1), 2) for step in (0, 10, 55, 99)]
        [0.04, 1.0, 0.5, 0.0]
    """
    rising = ramp * steps
    if step < rising:
        return LOWEST + (1 - LOWEST) * step / rising
    if name == "cosine":
        return 0.5 * (1 + math.cos(math.pi * (step - rising) / (steps - rising)))
    return (steps - step) / (steps - rising)
