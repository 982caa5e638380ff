"""How many processes load images."""

from __future__ import annotations

import os


def loading_processes(asked: int) -> int:
    """Give as many processes as were asked for, at most one a core: more only take turns, and torch warns of them.

    What is loaded is the same with any number, so that settings may name more than one machine has.

    Example:
        >>> loading_processes(0), 1 <= loading_processes(10_000) < 10_000
        (0, True)
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(asked, cores)
