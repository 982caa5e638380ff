"""A program that runs tasks in two processes, for tests that end it: prints the pid of every task, then what it kept.

Its arguments: how long a task sleeps, ``stubborn`` for tasks that ignore SIGTERM, and ``elsewhere`` for a main thread
that signals do not wake, as those that come just before it waits.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from contextlib import closing

from gspool.executor import Executor, run_tasks
from gspool.terminal.signals import exit_with_line


def make_worker():
    return work


def work(task):
    number, sleep, stubborn = task
    # One write: print may write the end of the line apart, and two processes share the pipe.
    os.write(1, f"begun {os.getpid()}\n".encode())
    if stubborn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    # The first task is over at once, so that there is something to keep.
    time.sleep(sleep if number else 0.0)
    return number


if __name__ == "__main__":
    tasks = [(number, float(sys.argv[1]), "stubborn" in sys.argv) for number in range(6)]
    if "elsewhere" in sys.argv:
        threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    kept = 0
    with (
        exit_with_line(lambda: f"stopped; {kept} kept"),
        closing(run_tasks(make_worker, tasks, Executor(2))) as results,
    ):
        print("ready", flush=True)
        for _, number in results:
            kept += 1
            print(f"kept {number}", flush=True)
