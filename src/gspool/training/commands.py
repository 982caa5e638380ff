"""`gspool train` and `gspool evaluate`: arguments in, tables out."""

from __future__ import annotations

import shlex
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from gspool.terminal.output import check_writable
from gspool.terminal.status import run_told
from gspool.terminal.table import show_table
from gspool.training.checkpoint import CheckpointError
from gspool.training.loop import NonFiniteLossError
from gspool.training.parsing import parse_arguments, read_config, values_of
from gspool.training.presets import with_available_backbone
from gspool.training.run_folder import CONFIG, process_rank
from gspool.training.signals import TerminatedError, TrainingInterruptedError, is_launched, stop_on_signal

# These are explained in one line; any other error keeps its traceback.
EXPLAINED = (CheckpointError, NonFiniteLossError)


def run(command: str, arguments: Sequence[str]) -> int:
    """Run one of the commands and return its exit status: 143 after SIGTERM, 130 after Ctrl-C."""
    function = train_command
    if command != "train":
        function = getattr(import_module(f"gspool.training.{command}"), f"{command}_command")
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
    from gspool.training.diagnosis import result_lines, threshold_in_words
    from gspool.training.fit import run_warnings
    from gspool.training.run import train
    from gspool.training.sets import check_fetched, fetch_data

    if resume is not None:
        config = read_config(Path(resume).expanduser() / CONFIG)
    elif not values_of("--model.backbone", arguments):
        config = with_available_backbone(config)
    if download and process_rank() == 0:
        check_fetched(config.data)
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
