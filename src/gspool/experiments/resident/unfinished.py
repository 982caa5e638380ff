"""A training that time ended, kept on disk: it goes on from there and ends with the numbers of one that was not cut."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from pathlib import Path

    from gspool.experiments.resident.course import ResidentCourse

# Values of a course that change from step to step, besides the weights: what is random is drawn from (seed, step).
COUNTED = ("step", "training_seconds", "curve", "best")


def keep(course: ResidentCourse, path: Path, seconds: float) -> None:
    """Write everything that a course needs to go on, after ``seconds`` of training; aside first, then renamed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    state = {
        "learner": course.learner.state_dict(),
        "optimiser": course.learner.optimiser.state_dict(),
        "monitor": course.monitor.state_dict(),
        "seconds": seconds,
        **{name: getattr(course, name) for name in COUNTED},
    }
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    torch.save(state, aside)
    aside.replace(path)


def go_on(course: ResidentCourse, path: Path) -> float:
    """Bring a course to where it was kept, and give the seconds that it had taken until then."""
    state = torch.load(path, map_location=course.device, weights_only=True)
    course.learner.load_state_dict(state["learner"])
    course.learner.optimiser.load_state_dict(state["optimiser"])
    course.monitor.load_state_dict(state["monitor"])
    for name in COUNTED:
        setattr(course, name, state[name])
    return float(state["seconds"])
