"""Experiments by name, imported when they are asked for, and whether they have been run."""

from __future__ import annotations

from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from gspool.provenance import is_quick, read_result

if TYPE_CHECKING:
    from gspool.experiments.experiment import Experiment

# In the order of the paper. A new experiment is a module that exports EXPERIMENT, and a line here.
MODULES = {
    "toy": "toy",
    "tokens": "tokens",
    "collage": "collage",
    "zero-shot": "zero_shot",
    "benchmark": "benchmark",
    "components": "components",
    "mu": "mu",
    "screening": "screening",
    "computation": "computation",
    "classification": "classification",
    "frozen": "frozen",
    "tuned": "tuned",
}


def names() -> list[str]:
    """Return the name of every experiment."""
    return [*MODULES]


def find(name: str) -> Experiment:
    """Return an experiment by its name.

    Raises:
        ValueError: if there is none of that name; a near one is suggested.

    Example:
        >>> find("toy").shows
        'Figure 2'
    """
    if name not in MODULES:
        near = get_close_matches(name, MODULES, n=1)
        hint = f", did you mean {near[0]}?" if near else "."
        raise ValueError(f"there is no experiment {name!r}{hint} Known are {', '.join(MODULES)}")
    found: Experiment = import_module(f"gspool.experiments.{MODULES[name]}").EXPERIMENT
    return found


def status(experiment: Experiment, results: Path) -> str:
    """Return whether an experiment has been run, and when and where, or what is missing.

    A tiny version (--quick) measures nothing, and does not count.
    """
    records, missing = [], []
    for name in experiment.files:
        path = results / f"{name}.json"
        try:
            record = read_result(path) if path.is_file() else None
        except ValueError as damaged:
            return f"unknown: {damaged}"
        if record is None or is_quick(record):
            missing.append(name)
        else:
            records.append(record)
    if not records:
        return "not run"
    said = "; ".join(dict.fromkeys(f"{record['date']}, {record['device']}" for record in records))
    left = ", ".join(missing)
    if not left and experiment.missing is not None:
        left = experiment.missing(records[0])
    return f"partial ({said}); missing: {left}" if left else f"done: {said}"
