"""The number of loader processes."""

from __future__ import annotations

import os


def loading_processes(asked: int) -> int:
    """Return the number of loader processes: as requested, at most one for each core.

    More would only take turns, and torch warns about them. What is loaded is the same with any number, so a
    configuration may name more than a machine has.

    Example:
        >>> loading_processes(0), 1 <= loading_processes(10_000) < 10_000
        (0, True)
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(asked, cores)
