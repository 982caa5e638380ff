"""Experiments by name: the modules that export ``EXPERIMENT``, imported when they are asked for."""

from __future__ import annotations

from difflib import get_close_matches
from importlib import import_module
from typing import TYPE_CHECKING

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
}


def names() -> list[str]:
    """Name every experiment.

    Example:
        >>> names()[0]
        'toy'
    """
    return [*MODULES]


def find(name: str) -> Experiment:
    """Give an experiment by its name.

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
