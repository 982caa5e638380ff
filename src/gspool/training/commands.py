"""`gspool train` and `gspool evaluate`: arguments in, tables out, errors in words."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from gspool.files import write_atomic
from gspool.terminal.output import check_file_writable, check_writable
from gspool.terminal.parser import TeachingParser
from gspool.terminal.status import checking_arguments, run_told
from gspool.terminal.table import show_table
from gspool.training.checkpoint import CheckpointError
from gspool.training.course import NonFiniteLossError
from gspool.training.data_words import named_data, other_name
from gspool.training.interruption import TrainingInterruptedError
from gspool.training.parsing import parse_arguments
from gspool.training.run_folder import process_rank

# What a person can put right is told in a line; anything else keeps its traceback.
TOLD = (CheckpointError, NonFiniteLossError)


def run(command: str, arguments: Sequence[str]) -> int:
    """Run one of the commands and give its exit status."""
    commands = {"train": train_command, "evaluate": evaluate_command}
    try:
        return run_told(f"gspool {command}", commands[command], arguments, TOLD)
    except TrainingInterruptedError as interruption:
        print(f"\n{interruption}", file=sys.stderr)
        return 130


def train_command(arguments: Sequence[str]) -> None:
    """Train, and end with a table and the report's address."""
    config, resume, download = parse_arguments(arguments)
    from gspool.training.beginning import check_beginning
    from gspool.training.fit import check_monitor
    from gspool.training.inherited_options import check_model_options
    from gspool.training.parsing import read_config
    from gspool.training.run import arms_of, train
    from gspool.training.run_folder import CONFIG
    from gspool.training.sets import check_fetched, fetch_data
    from gspool.training.warm_start_notice import warm_start_notice

    if resume is None:
        with checking_arguments():
            check_beginning(config)
            check_monitor(config)
            for arm in arms_of(config, Path()):
                check_model_options(arm.config, arguments)
    else:
        config = read_config(Path(resume).expanduser() / CONFIG)
    if download and process_rank() == 0:
        check_fetched(config.data)
        check_writable(Path(config.output.folder or "runs").expanduser(), "--output.folder")
        fetch_data(config.data)
    result = train(config, resume)
    if process_rank() > 0:
        return
    arms = arms_of(read_config(result.folder / CONFIG), result.folder)
    rows = [result.model, *([] if result.baseline is None else [result.baseline])]
    show_table("test classes", {arm.name: row.metrics for arm, row in zip(arms, rows, strict=True)})
    print(f"run     {result.folder}")
    if result.report is not None:
        print(f"report  {result.report}")
    for arm, row in zip(arms, rows, strict=True):
        if row.vectors_seen is not None:
            notice = warm_start_notice(arm.config, row.best_step, row.vectors_seen)
            print(f"gspool train: warning: {notice}", file=sys.stderr)


def evaluate_command(arguments: Sequence[str]) -> None:
    """Evaluate, and show a table or JSON."""
    from gspool.evaluation.checked_input import as_ranks
    from gspool.training.config import DataConfig
    from gspool.training.help_text import EVALUATE
    from gspool.training.parsing import read_config
    from gspool.training.run import evaluate_run
    from gspool.training.run_folder import CONFIG
    from gspool.training.sets import fetch_data

    arguments = named_data(arguments)
    # The run's own data is the default of every option of the data, so it is looked for before they are read.
    configs = (Path(word) / CONFIG for word in arguments if not word.startswith("-"))
    own = next((read_config(path).data for path in configs if path.is_file()), None)
    if own is not None and other_name(arguments, own.name):
        own = replace(own, root=None, options={})  # those of another data set mean nothing here
    parser = TeachingParser("gspool evaluate", EVALUATE, "gspool evaluate RUN [--split NAME] [--data.OPTION VALUE ...]")
    parser.add_argument("run", metavar="RUN", help="The folder of a run, or of a saved model.")
    parser.add_argument("--split", choices=["train", "validation", "test"], default="test", help="Which classes.")
    parser.add_argument("--ks", type=list[int], default=[1, 2, 4, 8], help="Ranks K of R@K.")
    parser.add_argument("--device", type=str, default=None, help="cpu, cuda ...; a GPU where there is one.")
    parser.add_argument("--json", type=str, default=None, metavar="FILE", help="Write the figures to a file as well.")
    parser.add_argument("--progress", type=bool, default=True, help="Show a progress bar.")
    parser.add_argument("--download", action="store_true", help="Fetch the data set first where it is not there.")
    parser.add_class_arguments(DataConfig, "data", as_positional=False)
    parser.describe(
        "--data", "DATA", "A folder or a CSV list of pictures, a data set by name, or a YAML file of the options below."
    )
    if own is not None:
        parser.set_defaults({f"data.{name}": value for name, value in vars(own).items()})
    namespace = parser.parse_args(list(arguments))
    with checking_arguments():
        as_ranks(namespace["ks"])
    json_file = None if namespace["json"] is None else Path(namespace["json"])
    if json_file is not None:
        check_file_writable(json_file, "--json")
    given = any(word.startswith("--data") for word in arguments)
    data = None
    if own is not None or given:
        try:
            made = (parser.instantiate if hasattr(parser, "instantiate") else parser.instantiate_classes)(namespace)
        except ValueError as error:
            parser.error(str(error))
        data = made["data"]
    if namespace["download"] and data is not None:
        fetch_data(data)
    evaluation = evaluate_run(
        namespace["run"], namespace["split"], data, namespace["ks"], namespace["device"], namespace["progress"]
    )
    show_table(namespace["split"], {Path(namespace["run"]).name: evaluation.metrics})
    counts = evaluation.metrics
    print(f"{counts.queries:,} queries, {counts.lone_queries:,} lone ones left out, gallery of {counts.gallery:,}")
    if evaluation.entropy is not None:
        print(f"entropy of the pooling weights {evaluation.entropy:.4f} (1 is average pooling)")
    if json_file is not None:
        content = {**counts.as_dict(), "weights_entropy": evaluation.entropy, "split": namespace["split"]}
        json_file.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(json_file, (json.dumps(content, indent=2) + "\n").encode())
