"""Four tiny trainings in two processes, as a program of its own that tests send signals to.

The first ends soon, the others never do. It tells when its processes have begun, with their numbers, and every outcome.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time

from experiments.resident.tiny_sets import tiny
from gspool.experiments.benchmark.stand_in import striped
from gspool.experiments.crew import Crew, told_when_stopped, told_when_terminated
from gspool.experiments.resident import Job, train_all


def end_the_process(task: int) -> int:
    """Die as one does that the system kills for want of memory, where the task is not 0."""
    if task:
        os.kill(os.getpid(), signal.SIGKILL)
    return task


def sleep_long(task: int) -> None:
    """Never come to a next step."""
    time.sleep(600)


def echo(task: int) -> int:
    """Be done at once."""
    return task


def tell_when_begun(count: int) -> None:
    while len(children := multiprocessing.active_children()) < count:
        time.sleep(0.01)
    print("begun", *(child.pid for child in children), flush=True)


def train() -> None:
    endless = {"max_steps": 10**7, "evaluate_every": 10**6}
    jobs = [
        Job({"seed": seed}, tiny(seed=seed, **(endless if seed else {})), list(range(4, 8)), list(range(4)))
        for seed in range(4)
    ]
    sets = striped(8, 4), striped(6, 4, seed=2)
    train_all(jobs, *sets, "cpu", lambda job, _: print("kept", job.asked["seed"], flush=True), processes=2)


def sleep() -> None:
    tasks = iter(range(2))
    with told_when_stopped(lambda: 0, 2), Crew(sleep_long, (), 2) as crew:
        for _ in crew.answers(lambda: next(tasks, None)):
            pass


def wait() -> None:
    """Keep a crew that has nothing to do, as a study does between two of its parts."""
    tasks = iter(range(2))
    with told_when_terminated(), Crew(echo, (), 2) as crew:
        for _, answer in crew.answers(lambda: next(tasks, None)):
            print("kept", answer, flush=True)
        time.sleep(600)


if __name__ == "__main__":
    threading.Thread(target=tell_when_begun, args=(2,), daemon=True).start()
    {"train": train, "sleep": sleep, "wait": wait}[sys.argv[1]]()
