"""Whether the two runs of a pair were trained by the same code."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gspool.experiments.benchmark.store import Run


def commits_differ(runs: Sequence[Run], arms: Iterable[tuple[str, str]]) -> tuple[int, int]:
    """Count the pairs of runs of these arms that were trained at different commits, and all of them.

    Example:
        >>> def run(arm, commit):
        ...     return Run({"arm": arm, "fold": 0, "seed": 0}, {"origin": {"commit": commit}})
        >>> runs = [run("c2 gap", "b"), run("c2 gsp", "a"), run("c2 gmp", "b")]
        >>> commits_differ(runs, [("c2 gsp", "c2 gap"), ("c2 gmp", "c2 gap"), ("ms gsp", "ms gap")])
        (1, 2)
    """
    commits = {(run.asked["arm"], *run.place): run.found["origin"]["commit"] for run in runs}
    places = {run.place for run in runs}
    pairs = [((one, *place), (other, *place)) for one, other in arms for place in places]
    whole = [(commits[one], commits[other]) for one, other in pairs if one in commits and other in commits]
    return sum(one != other for one, other in whole), len(whole)


def mixed_commits_told(runs: Sequence[Run], arms: Iterable[tuple[str, str]]) -> str:
    """Say how many pairs that holds for and what it means; nothing where all are of one commit."""
    differ, pairs = commits_differ(runs, arms)
    if not differ:
        return ""
    return (
        f"Of these {pairs} pairs {differ} are of runs at two commits. They share seed, batches and boxes of crops; the "
        "later code makes the same steps faster and rounds otherwise, and what that does to a difference has not been "
        "measured."
    )
