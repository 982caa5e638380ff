"""An experiment that measures nothing, for tests of what is made of experiments."""

from __future__ import annotations

from typing import Any

import pytest

from gspool.experiments import registry
from gspool.experiments.experiment import Experiment


def register_probe(monkeypatch: pytest.MonkeyPatch, **more: Any) -> None:
    """Let the registry know one experiment alone, named probe."""
    experiment = Experiment(
        name="probe", promise="nothing much", shows="Table 0", cost="a moment", files=("probe",), **more
    )
    monkeypatch.setattr(registry, "MODULES", {"probe": "probe"})
    monkeypatch.setattr(registry, "find", lambda name: experiment)
