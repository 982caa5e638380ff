"""An experiment that measures nothing, for tests of what is made of experiments."""

from __future__ import annotations

from typing import Any

import pytest

from gspool.experiments import registry
from gspool.experiments.experiment import Experiment


def register_probe(monkeypatch: pytest.MonkeyPatch, **more: Any) -> Experiment:
    """Make ``probe`` the only experiment of the registry."""
    known = {"name": "probe", "claim": "nothing much", "shows": "Table 0", "cost": "a moment", "files": ("probe",)}
    experiment = Experiment(**{"run": lambda _: None, **known, **more})
    monkeypatch.setattr(registry, "MODULES", {"probe": "probe"})
    monkeypatch.setattr(registry, "find", lambda name: experiment)
    return experiment
