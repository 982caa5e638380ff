"""A program that runs tasks in two processes, for tests that end it: prints their pids, then each task when it is kept.

Told what to do by its arguments: how long a task sleeps, ``stubborn`` for tasks that ignore SIGTERM.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from gspool.executor import Executor
from gspool.executor.grid import run_grid
from gspool.executor.run_store import RunStore


def make_worker():
    return work


def work(asked, seconds):
    print(f"begun {os.getpid()}", flush=True)
    if asked["stubborn"]:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    # The first task is over at once, so that there is something to keep.
    time.sleep(asked["sleep"] if asked["number"] else 0.0)
    return {"pid": os.getpid()}


class TellingStore(RunStore):
    def put(self, asked, found):
        super().put(asked, found)
        print(f"kept {asked['number']}", flush=True)


if __name__ == "__main__":
    sleep, stubborn = float(sys.argv[1]), "stubborn" in sys.argv
    jobs = [{"number": number, "sleep": sleep, "stubborn": stubborn} for number in range(6)]
    with TemporaryDirectory() as folder:
        store = TellingStore(Path(folder) / "runs.jsonl")
        run_grid(store, jobs, make_worker, Executor(2))
