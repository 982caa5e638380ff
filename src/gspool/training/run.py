"""A whole training run: the model, its baseline and the report."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import NamedTuple

from gspool.training.checks import check_run
from gspool.training.config import TrainConfig
from gspool.training.fit import FitResult, fit
from gspool.training.parsing import read_config
from gspool.training.run_folder import CONFIG, REPORT, new_run_folder, process_rank, read_result
from gspool.training.sets import describe_data
from gspool.training.signals import TrainingInterruptedError

BASELINE = "baseline-"


class TrainResult(NamedTuple):
    """The folder of a run, the figures of the model and of the baseline if there is one, and the report.

    ``rows`` are the test metrics of every model by name, and below each those of the states that it started from.
    """

    folder: Path
    model: FitResult
    baseline: FitResult | None
    report: Path | None
    rows: dict[str, dict[str, float]]


class Variant(NamedTuple):
    """One of the models that are trained: its name in tables, its settings and its folder."""

    name: str
    config: TrainConfig
    folder: Path


def train(config: TrainConfig, resume: str | Path | None = None, command: str = "") -> TrainResult:
    """Train what the configuration describes in a new folder, or continue an interrupted run.

    Args:
        config: all settings; not used with ``resume``, where those of the folder hold.
        resume: the folder of an interrupted run.
        command: what the user has written, to be repeated in the message about data that does not fit.

    Raises:
        ValueError: if a setting does not fit, the folder cannot be written or already holds a run.
        TrainingInterruptedError, NonFiniteLossError, CheckpointError: as `fit`.
    """
    if resume is None:
        folder = new_run_folder(config)
    else:
        folder = Path(resume).expanduser()
        config = read_config(folder / CONFIG)
    variants = variants_of(config, folder)
    listed = None
    if any(read_result(variant.folder) is None for variant in variants):
        shown = config.trainer.progress and process_rank() == 0
        listed = check_run([each.config for each in variants], command, begun=resume is not None, progress=shown)
        if shown:
            print(describe_data(config.data, listed), flush=True)
    try:
        results = [fit(variant.config, variant.folder, variant.name, listed=listed) for variant in variants]
    except TrainingInterruptedError as interruption:
        # Of the baseline, too, the run as a whole is resumed.
        raise TrainingInterruptedError(folder, interruption.step, interruption.signum) from None
    rows = {}
    for variant, result in zip(variants, results, strict=True):
        rows[variant.name] = result.metrics
        rows |= {f"{variant.name}, {name}": metrics for name, metrics in reversed([*result.before.items()])}
    report = None
    if config.output.report:
        from gspool.training.report import write_report

        report = write_report(folder / REPORT, variants, results, rows)
    return TrainResult(folder, results[0], results[1] if len(results) > 1 else None, report, rows)


def variants_of(config: TrainConfig, folder: Path) -> list[Variant]:
    """Return the model and, if configured, the baseline: the same in everything but its pooling layer.

    Attributes belong to prototypes, so the zero-shot regularisation is left out of a baseline without them.
    """
    variants = [Variant(config.model.pooling, config, folder)]
    if config.baseline is not None:
        other = deepcopy(config)
        other.model.pooling, other.model.pooling_options = config.baseline, {}
        other.baseline = None
        if config.start_from is not None:
            other.start_from = str(Path(config.start_from) / f"{BASELINE}{config.baseline}")
        if "gsp" not in config.baseline:
            other.loss.zsr = 0.0
        variants.append(Variant(config.baseline, other, folder / f"{BASELINE}{config.baseline}"))
    return variants
