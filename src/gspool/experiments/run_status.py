"""Whether an experiment has been run: which of its results are there, from when and where, and what is missing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from gspool.provenance import is_quick, read_result

if TYPE_CHECKING:
    from gspool.experiments.experiment import Experiment


class Status(NamedTuple):
    """Whether an experiment has been run, and when and where, or why not."""

    done: bool
    text: str


def files_there(experiment: Experiment, results: Path) -> list[str]:
    """Name the results of an experiment that have been measured; a tiny version measures nothing."""
    paths = {name: results / f"{name}.json" for name in experiment.files}
    return [name for name, path in paths.items() if path.is_file() and not is_quick(read_result(path))]


def status(experiment: Experiment, results: Path) -> Status:
    """Look up what has been run: every file of the experiment must be there for it to be done."""
    try:
        there = files_there(experiment, results)
    except ValueError as damaged:
        return Status(False, f"not known: {damaged}")
    records = [read_result(results / f"{name}.json") for name in there]
    said = "; ".join(dict.fromkeys(f"{record['date']}, {record['device']}" for record in records))
    missing = [name for name in experiment.files if name not in there]
    if not missing:
        left = "" if experiment.unfinished is None else experiment.unfinished(results)
        return Status(not left, f"in part ({said}); missing: {left}" if left else said)
    if there:
        return Status(False, f"in part ({said}); missing: {', '.join(missing)}")
    return Status(False, f"not run: {experiment.why_not_run}")
