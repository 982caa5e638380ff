"""Train one model in one folder: from the first step or from its last checkpoint, to its figures on the test set."""

from __future__ import annotations

import math
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from gspool.data import ClassBalancedBatches
from gspool.evaluation.checked_input import as_ranks
from gspool.terminal.bar import work_bar
from gspool.training.beginning import check_beginning
from gspool.training.build import build_loss, build_model, check_fit
from gspool.training.checkpoint import BEST, LAST, full_disk_told, read_checkpoint
from gspool.training.embed import evaluate_images
from gspool.training.engine import hardware_told, lightning, quiet
from gspool.training.gather import wait_for_all
from gspool.training.interruption import TrainingInterruptedError, stop_on_signal
from gspool.training.metrics_log import MetricsLog
from gspool.training.monitor import Monitor
from gspool.training.run_folder import (
    MODEL,
    log_to,
    only_training,
    own_config,
    process_rank,
    read_result,
    write_result,
    write_versions,
)
from gspool.training.sets import list_images, prepared
from gspool.training.stream import stream_loader
from gspool.training.warm_start_notice import open_warm_start, warm_start_notice

if TYPE_CHECKING:
    from gspool.data import ImageSet
    from gspool.data.image_set import Split
    from gspool.training.config import TrainConfig


class FitResult(NamedTuple):
    """A finished run: its folder, its figures on the test set, and which step they belong to.

    ``metrics`` holds p@1, p@r, map@r and r@k in [0, 1]; ``validation`` the best value that was watched, or None.
    ``vectors_seen`` is how far the warm start of GSP came where the model of that step is still in it, else None.
    """

    folder: Path
    metrics: dict[str, float]
    best_step: int
    steps: int
    validation: float | None
    weights_entropy: float | None
    vectors_seen: int | None = None


def fit(config: TrainConfig, folder: str | Path, title: str | None = None) -> FitResult:
    """Train, keep the model of the best evaluation, and measure it on the test set.

    A folder that already holds a checkpoint of this configuration goes on from there, and gives the numbers that it
    would have given without the interruption. One that has finished is read.

    Args:
        config: all settings.
        folder: where checkpoints, metrics, the model and the figures go.
        title: what the progress bar calls it.

    Raises:
        ValueError: before any training, if something in the configuration does not fit or another process trains there.
        TrainingInterruptedError: after Ctrl-C or SIGTERM; everything is saved.
        NonFiniteLossError: if the loss becomes NaN or infinite.
        CheckpointError: if the disk is full; the last good checkpoint is kept.
    """
    folder = Path(folder)
    finished = read_result(folder)
    if finished is not None:
        return FitResult(folder=folder, **finished)
    if not (folder / LAST).exists():
        check_beginning(config)
    if process_rank() > 0:
        return _fit(config, folder, title)
    with only_training(folder):
        own_config(folder, config)
        return _fit(config, folder, title)


def _fit(config: TrainConfig, folder: Path, title: str | None) -> FitResult:
    """Train in a folder that this run owns."""
    lightning()  # says at once if it is missing
    check_monitor(config)
    if config.trainer.threads:
        torch.set_num_threads(config.trainer.threads)
    # Before the model: it may fetch weights, and a missing folder must not have to wait for that.
    listed = {split: list_images(config.data, split) for split in _splits(config)}
    model = build_model(config)
    progress = config.trainer.progress and process_rank() == 0
    train = prepared(listed["train"], config.data, model.pixels, training=True, progress=progress)
    # All that is evaluated is looked at now: a broken image must not be found when all the work is done.
    evaluated: dict[str, ImageSet] = {
        split: prepared(images, config.data, model.pixels, progress=progress)
        for split, images in listed.items()
        if split != "train"
    }
    test, watched = evaluated["test"], evaluated.get(config.trainer.monitor_split)
    loss = build_loss(config.loss, train.num_classes, model.out_dim, config.data.batch_size, config.trainer.seed)
    check_fit(model, loss, train)
    batches = ClassBalancedBatches(
        train.labels, config.data.classes_per_batch, config.data.images_per_class, rank=0, world_size=1
    )
    from gspool.training.module import EmbeddingTraining

    warmup = math.ceil(config.schedule.warmup_epochs * len(batches))
    module = EmbeddingTraining(model, loss, config, warmup_steps=warmup)
    plateau = config.schedule.patience if config.schedule.name == "plateau" else None
    monitor = Monitor(config.trainer.patience, plateau)
    state = read_checkpoint(folder / LAST) if (folder / LAST).exists() else None
    if state is not None:
        module.load_state_dict(state["module"])
        module.step = state["step"]
        monitor.load_state_dict(state["monitor"])
    with full_disk_told(folder), log_to(folder) as log:
        log.info("%s; from step %d; %s; %s", train, module.step, title or config.model.pooling, folder)
        if module.step < config.trainer.max_steps and not monitor.stopped:
            _run(config, folder, module, train, watched, monitor, state, title or config.model.pooling)
        result = _finish(config, folder, module, monitor, watched is not None, test)
        if result.vectors_seen is not None:
            log.warning("%s", warm_start_notice(config, result.best_step, result.vectors_seen))
        return result


def _splits(config: TrainConfig) -> list[Split]:
    """Name the splits that a run needs, in the order in which they are looked at."""
    return ["train", "test", "validation"] if config.trainer.monitor_split == "validation" else ["train", "test"]


def check_monitor(config: TrainConfig) -> None:
    """Refuse to watch a metric that is not measured.

    Raises:
        ValueError: if there is no such metric among those of the configuration, or a rank is none.
    """
    known = ["p@1", "p@r", "map@r", *(f"r@{k}" for k in as_ranks(config.output.ks))]
    if config.trainer.monitor not in known:
        raise ValueError(f"trainer.monitor must be one of {', '.join(known)}, got {config.trainer.monitor!r}")


def _run(
    config: TrainConfig,
    folder: Path,
    module: Any,
    train: ImageSet,
    watched: ImageSet | None,
    monitor: Monitor,
    state: dict[str, Any] | None,
    title: str,
) -> None:
    """Let Lightning make the steps that are left."""
    from gspool.training.course import Course

    settings, first = config.trainer, module.step
    main = process_rank() == 0
    with ExitStack() as opened:
        metrics = opened.enter_context(closing(MetricsLog(folder, first))) if main else None
        request = opened.enter_context(stop_on_signal())
        bar = opened.enter_context(work_bar(title, first, settings.max_steps, settings.progress and main))
        course = Course(config, folder, train, watched, monitor, request, bar, metrics, state)
        with quiet():
            trainer = _trainer(config, settings.max_steps - first, course, module.warmup_steps)
            if main:
                write_versions(folder, f"{trainer.strategy.root_device}, {settings.devices} x {settings.num_nodes}")
            module.train_dataloader = lambda: _loader(config, train, first, trainer)
            trainer.fit(module)
    if course.interrupted:
        raise TrainingInterruptedError(folder, module.step)


def _loader(config: TrainConfig, train: ImageSet, first: int, trainer: Any) -> Any:
    """Make the loader once the processes know each other: each takes its part of every batch."""
    batches = ClassBalancedBatches(
        train.labels, config.data.classes_per_batch, config.data.images_per_class, seed=config.trainer.seed
    )
    pin = trainer.strategy.root_device.type == "cuda"
    settings = config.trainer
    return stream_loader(train, batches, first, settings.max_steps, settings.seed, config.data.workers, pin)


def _trainer(config: TrainConfig, steps: int, course: Any, warmup_steps: int) -> Any:
    settings = config.trainer
    strategy = "auto"
    if settings.devices * settings.num_nodes > 1:
        # A backbone that is frozen at first has no gradients for a while.
        strategy = "ddp_find_unused_parameters_true" if warmup_steps else "ddp"
    with hardware_told(settings):
        return lightning().Trainer(
            max_steps=steps,
            max_epochs=-1,
            accelerator=settings.accelerator,
            devices=settings.devices,
            num_nodes=settings.num_nodes,
            strategy=strategy,
            precision=settings.precision,
            sync_batchnorm=settings.sync_batchnorm,
            gradient_clip_val=config.optimiser.clip or None,
            callbacks=[course],
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            use_distributed_sampler=False,
            num_sanity_val_steps=0,
        )


def _finish(
    config: TrainConfig, folder: Path, module: Any, monitor: Monitor, was_watched: bool, test: ImageSet
) -> FitResult:
    """Restore the best model, measure it, save it, and write the figures last of all."""
    wait_for_all()  # the first process may still be writing the best model
    model = module.model
    best_step = monitor.best_step if was_watched else module.step
    if was_watched:
        model.load_state_dict(read_checkpoint(folder / BEST)["model"])
    model.freeze(config.model.freeze)
    warm_start = open_warm_start(model)
    evaluation = evaluate_images(model, test, ks=config.output.ks, workers=config.data.workers)
    figures = {
        "metrics": dict(evaluation.metrics),
        "best_step": best_step,
        "steps": module.step,
        "validation": monitor.best_value if was_watched else None,
        "weights_entropy": evaluation.entropy,
        "vectors_seen": None if warm_start is None else len(warm_start.memory),
    }
    if process_rank() == 0:
        card = {"data": config.data.name}
        model.save_pretrained(folder / MODEL, metrics=figures["metrics"], model_card_kwargs=card)
        write_result(folder, figures)
    wait_for_all()
    return FitResult(folder=folder, **figures)
