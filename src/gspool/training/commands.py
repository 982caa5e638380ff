"""`gspool train` and `gspool evaluate`: arguments in, tables out."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gspool.files import write_atomic
from gspool.terminal.output import check_file_writable, check_writable
from gspool.terminal.status import checking_arguments, run_told
from gspool.terminal.table import show_table
from gspool.training.checkpoint import CheckpointError
from gspool.training.evaluate_arguments import evaluate_parser, named_data, other_data
from gspool.training.loop import NonFiniteLossError
from gspool.training.parsing import instantiate, parse_arguments, read_config
from gspool.training.run_folder import CONFIG, process_rank
from gspool.training.signals import TerminatedError, TrainingInterruptedError, is_launched, stop_on_signal

# These are explained in one line; any other error keeps its traceback.
EXPLAINED = (CheckpointError, NonFiniteLossError)


def run(command: str, arguments: Sequence[str]) -> int:
    """Run one of the commands and return its exit status: 143 after SIGTERM, 130 after Ctrl-C."""
    commands = {"train": train_command, "evaluate": evaluate_command, "compare": _compare_command}
    try:
        with stop_on_signal():
            return run_told(f"gspool {command}", commands[command], arguments, EXPLAINED)
    except TrainingInterruptedError as interruption:
        message, status = str(interruption), interruption.status
    except TerminatedError:
        message, status = "interrupted", 128 + signal.SIGTERM
    if is_launched():
        return 0  # the first process reports; to it, any other status is a crash of this one
    print(f"\n{message}", file=sys.stderr)
    return status


def _compare_command(arguments: Sequence[str]) -> None:
    from gspool.training.compare import compare_command

    compare_command(arguments)


def train_command(arguments: Sequence[str]) -> None:
    """Train, and print a table and the path of the report."""
    config, resume, download = parse_arguments(arguments)
    from gspool.training.checks import check_beginning, check_model_options, check_monitor
    from gspool.training.metric_learning import warm_start_warning
    from gspool.training.run import table_rows, train, variants_of
    from gspool.training.sets import check_fetched, fetch_data

    if resume is None:
        with checking_arguments():
            check_beginning(config)
            check_monitor(config)
            for variant in variants_of(config, Path()):
                check_model_options(variant.config, arguments)
    else:
        config = read_config(Path(resume).expanduser() / CONFIG)
    if download and process_rank() == 0:
        check_fetched(config.data)
        check_writable(Path(config.output.folder or "runs").expanduser(), "--output.folder")
        fetch_data(config.data)
    result = train(config, resume)
    if process_rank() > 0:
        return
    variants = variants_of(read_config(result.folder / CONFIG), result.folder)
    rows = [result.model, *([] if result.baseline is None else [result.baseline])]
    show_table("test", table_rows(variants, rows))
    if rows[0].classes:
        print(f"test: {rows[0].classes:,} classes, {rows[0].queries:,} queries, gallery of {rows[0].gallery:,}")
    print(f"run     {result.folder}")
    if result.report is not None:
        print(f"report  {result.report}")
    if any(row.ending == "time" for row in rows):
        print(f"stopped by trainer.max_seconds; go on with: gspool train --resume {result.folder}")
    for variant, row in zip(variants, rows, strict=True):
        if row.vectors_seen is not None:
            warning = warm_start_warning(variant.config, row.best_step, row.vectors_seen)
            print(f"gspool train: warning: {warning}", file=sys.stderr)


def evaluate_command(arguments: Sequence[str]) -> None:
    """Evaluate, and print a table; write JSON where asked."""
    from gspool.evaluation.checked_input import as_ranks
    from gspool.training.run import evaluate_run
    from gspool.training.sets import fetch_data

    # The run's own data is the default of every option of the data, so it is read before they are parsed.
    configs = (Path(word) / CONFIG for word in arguments if not word.startswith("-"))
    own = next((read_config(path).data for path in configs if path.is_file()), None)
    is_other = own is None or other_data(arguments, own)
    if own is not None and is_other:
        own = replace(own, root=None, options={})  # those of another data set have no meaning here
    arguments = named_data(arguments)
    parser = evaluate_parser(own)
    namespace: Any = parser.parse_args(list(arguments))
    with checking_arguments():
        as_ranks(namespace["ks"])
    json_file = None if namespace["json"] is None else Path(namespace["json"])
    if json_file is not None:
        check_file_writable(json_file, "--json")
    data = None
    if own is not None or any(word.startswith("--data") for word in arguments):
        data = instantiate(parser, namespace)["data"]
    if namespace["download"] and data is not None:
        fetch_data(data)
    split: Any = namespace["split"] or (None if is_other else "test")
    evaluation = evaluate_run(
        namespace["run"], split, data, namespace["ks"], namespace["device"], namespace["progress"]
    )
    show_table(evaluation.split, {Path(namespace["run"]).name: evaluation.metrics})
    print(f"{evaluation.split}: {evaluation.counts()}")
    if evaluation.entropy is not None:
        print(f"entropy of the pooling weights {evaluation.entropy:.4f} (1 is average pooling)")
    if json_file is not None:
        content = {
            **evaluation.metrics.as_dict(),
            "classes": evaluation.classes,
            "weights_entropy": evaluation.entropy,
            "split": evaluation.split,
        }
        json_file.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(json_file, (json.dumps(content, indent=2) + "\n").encode())
