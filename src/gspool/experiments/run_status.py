"""Whether an experiment has been run: which of its results are there, from when and where, and what is missing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from gspool.experiments.certificate import read_result

if TYPE_CHECKING:
    from gspool.experiments.experiment import Experiment


class Status(NamedTuple):
    """Whether an experiment has been run, and when and where, or why not."""

    done: bool
    text: str


def files_there(experiment: Experiment, results: Path) -> list[str]:
    """Name the results of an experiment that have been written."""
    return [name for name in experiment.files if (results / f"{name}.json").is_file()]


def status(experiment: Experiment, results: Path) -> Status:
    """Look up what has been run: every file of the experiment must be there for it to be done."""
    there = files_there(experiment, results)
    records = [read_result(results / f"{name}.json") for name in there]
    said = "; ".join(dict.fromkeys(f"{record['date']}, {record['device']}" for record in records))
    missing = [name for name in experiment.files if name not in there]
    if not missing:
        left = "" if experiment.unfinished is None else experiment.unfinished(results)
        return Status(not left, f"in part ({said}); missing: {left}" if left else said)
    if there:
        return Status(False, f"in part ({said}); missing: {', '.join(missing)}")
    return Status(False, f"not run: {experiment.why_not_run}")
