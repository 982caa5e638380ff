"""A whole training run: the model, its baseline and the report, and the command that prints them."""

from __future__ import annotations

import shlex
import signal
import sys
from collections.abc import Sequence
from copy import deepcopy
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from gspool.models.create import has_class_token
from gspool.terminal.output import check_writable
from gspool.terminal.status import run_told
from gspool.terminal.table import show_table
from gspool.training.checkpoint import CheckpointError
from gspool.training.config import TrainConfig
from gspool.training.embed import result_lines, threshold_in_words
from gspool.training.fit import FitResult, fit, run_warnings
from gspool.training.head_settings import HEAD_OPTIONS, USUAL, frozen_defaults, layer_options
from gspool.training.loop import NonFiniteLossError
from gspool.training.parsing import parse_arguments, read_config, values_of
from gspool.training.presets import with_available_backbone
from gspool.training.processes import TerminatedError, TrainingInterruptedError, is_launched, stop_on_signal
from gspool.training.report import write_report
from gspool.training.run_folder import CONFIG, REPORT, new_run_folder, process_rank, read_result
from gspool.training.sets import check_run, describe_data, fetch_data

BASELINE = "baseline-"
# These are explained in one line; any other error keeps its traceback.
EXPLAINED = (CheckpointError, NonFiniteLossError)


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
        report = write_report(folder / REPORT, variants, results, rows)
    return TrainResult(folder, results[0], results[1] if len(results) > 1 else None, report, rows)


def variants_of(config: TrainConfig, folder: Path) -> list[Variant]:
    """Return the model and, if configured, the baseline: the same in everything but its pooling layer.

    Attributes belong to prototypes, so the zero-shot regularisation is left out of a baseline without them. With a
    frozen backbone the baseline has the settings chosen for it, where the model has those chosen for its own layer.
    """
    variants = [Variant(config.model.pooling, config, folder)]
    if config.baseline is not None:
        other = deepcopy(config)
        other.model.pooling, other.model.pooling_options = config.baseline, {}
        other.baseline = None
        if config.model.freeze == "all":
            _use_own_settings(other, config.model.pooling)
        if config.start_from is not None:
            other.start_from = str(Path(config.start_from) / f"{BASELINE}{config.baseline}")
        if "gsp" not in config.baseline:
            other.loss.zsr = 0.0
        variants.append(Variant(config.baseline, other, folder / f"{BASELINE}{config.baseline}"))
    return variants


def _use_own_settings(baseline: TrainConfig, layer: str) -> None:
    """Replace settings chosen for a layer on frozen features by those of the baseline; what the user set stays."""
    model = baseline.model
    class_token = has_class_token(model.backbone)
    theirs, own = ({**USUAL, **frozen_defaults(name, class_token, model.dim)} for name in (layer, model.pooling))
    model.pooling_options = layer_options(own)
    for option in USUAL:
        section, setting = HEAD_OPTIONS[option]
        part = getattr(baseline, section)
        if getattr(part, setting) == theirs[option]:
            setattr(part, setting, own[option])


def run(command: str, arguments: Sequence[str]) -> int:
    """Run one of the commands and return its exit status: 143 after SIGTERM, 130 after Ctrl-C."""
    module = import_module(f"gspool.training.{'run' if command == 'train' else command}")
    function = getattr(module, f"{command}_command")
    try:
        with stop_on_signal():
            return run_told(f"gspool {command}", function, arguments, EXPLAINED)
    except TrainingInterruptedError as interruption:
        message, status = str(interruption), interruption.status
    except TerminatedError:
        message, status = "interrupted", 128 + signal.SIGTERM
    if is_launched():
        return 0  # the first process reports; to it, any other status is a crash of this one
    print(f"\n{message}", file=sys.stderr)
    return status


def train_command(arguments: Sequence[str]) -> None:
    """Train, and print a table and the path of the report."""
    config, resume, download = parse_arguments(arguments)
    if resume is not None:
        config = read_config(Path(resume).expanduser() / CONFIG)
    elif not values_of("--model.backbone", arguments):
        config = with_available_backbone(config)
    if download and process_rank() == 0:
        check_writable(Path(config.output.folder or "runs").expanduser(), "--output.folder")
        fetch_data(config.data)
    result = train(config, resume, shlex.join(["gspool", "train", *arguments]))
    if process_rank() > 0:
        return
    model = result.model
    show_table("test", result.rows)
    if model.classes:
        print(f"test: {model.classes:,} classes, {model.queries:,} queries, gallery of {model.gallery:,}")
        print("\n".join(result_lines(model.intervals, model.hardest, model.confused, model.classes)))
    if model.threshold is not None:
        print(threshold_in_words(model.threshold))
    print(f"run     {result.folder}")
    if result.report is not None:
        print(f"report  {result.report}")
    if "time" in (model.ending, result.baseline and result.baseline.ending):
        print(f"stopped by the time budget; go on with: gspool train --resume {result.folder}")
    for warning in run_warnings(config, model):
        print(f"gspool train: warning: {warning}", file=sys.stderr)
