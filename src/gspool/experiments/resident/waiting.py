"""The trainings that wait for their turn, and the moment from which none begins."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gspool.experiments.resident.pace import Pace, kind_of

if TYPE_CHECKING:
    from gspool.experiments.resident.fleet import Job
    from gspool.experiments.resident.outcome import Outcome


class Waiting:
    """The jobs that nobody has begun: handed out in order, until the first that would end too late."""

    def __init__(self, jobs: Sequence[Job], end: float | None, pace: Pace) -> None:
        self.jobs, self.end, self.pace = jobs, end, pace
        self.numbers = deque(range(len(jobs)))
        self.closed = False

    def next(self) -> int | None:
        """Give the number of the next job, or None where there is none, or too little time for it."""
        if self.numbers and self.end is not None and not self.closed:
            expected = self.pace.expected(kind_of(self.jobs[self.numbers[0]]))
            self.closed = time.time() + expected > self.end
        return self.numbers.popleft() if self.numbers and not self.closed else None

    def note(self, job: Job, outcome: Outcome) -> None:
        """Learn from a training how long others will take; one that time cut short says nothing."""
        if outcome.ending != "time":
            self.pace.note(kind_of(job), outcome.seconds)

    def left(self) -> list[Job]:
        """Give the jobs that were not begun."""
        return [self.jobs[number] for number in self.numbers]
