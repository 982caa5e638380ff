"""Trainings in processes side by side: what hands them out, what makes them, and how both end.

`Crew` holds the processes and gives their answers, `member` is what runs in each, `stopping` says what Ctrl-C and
SIGTERM do, `bars` shows how far the work is, and `make_trainings` puts them together.
"""

from gspool.experiments.crew.bars import Made, steps_under_way, trainings_under_way
from gspool.experiments.crew.crew import Broken, Crew, CrewDiedError
from gspool.experiments.crew.member import leave_if_told
from gspool.experiments.crew.stopping import TerminatedError, told_when_stopped, told_when_terminated
from gspool.experiments.crew.trainings import make_trainings

__all__ = [
    "Broken",
    "Crew",
    "CrewDiedError",
    "Made",
    "TerminatedError",
    "leave_if_told",
    "make_trainings",
    "steps_under_way",
    "told_when_stopped",
    "told_when_terminated",
    "trainings_under_way",
]
