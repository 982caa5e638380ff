"""Whether the two runs of a pair made their steps by the same code."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from gspool.experiments.benchmark.store import Run

# Trainings were kept from two commits before c3adca5, which gave the step of a ResNet kernels of its own. No commit
# after it changes what a step computes; one that does adds to this list those that come before it.
BEFORE_THE_KERNELS = ("62e0713", "dc6d9e8")


def steps_differ(runs: Sequence[Run], arms: Iterable[tuple[str, str]]) -> tuple[int, int]:
    """Count the pairs of runs of these arms whose steps were made by different code, and all of them.

    Example:
        >>> def run(arm, commit):
        ...     return Run({"arm": arm, "fold": 0, "seed": 0}, {"origin": {"commit": commit}})
        >>> runs = [run("c2 gap", "99ef4d7a"), run("c2 gsp", "dc6d9e8b"), run("c2 gmp", "c3adca5c")]
        >>> steps_differ(runs, [("c2 gsp", "c2 gap"), ("c2 gmp", "c2 gap"), ("ms gsp", "ms gap")])
        (1, 2)
    """
    early = {(run.asked["arm"], *run.place): _before_the_kernels(run) for run in runs}
    places = {run.place for run in runs}
    pairs = [((one, *place), (other, *place)) for one, other in arms for place in places]
    whole = [(early[one], early[other]) for one, other in pairs if one in early and other in early]
    return sum(one != other for one, other in whole), len(whole)


def mixed_steps_told(
    runs: Sequence[Run], arms: Sequence[tuple[str, str]], called: Mapping[str, str] | None = None
) -> str:
    """Say how many pairs that holds for, whose they all are, and what it means; nothing where no steps differ.

    Args:
        runs: all runs.
        arms: the names of the arms of each comparison.
        called: what arms are called on the page, where that is not their name.
    """
    differ, pairs = steps_differ(runs, arms)
    if not differ:
        return ""
    counts = {one: steps_differ(runs, [pair for pair in arms if pair[0] == one]) for one, _ in arms}
    whole = [(called or {}).get(one, one) for one, (mixed, there) in counts.items() if mixed == there > 0]
    word = "all" if differ == sum(mixed for mixed, there in counts.values() if mixed == there) else "among them all"
    among = f", {word} with {' and '.join(whole)}," if whole else ""
    return (
        f"Of these {pairs} pairs {differ}{among} have one run from before and one from after the step of training got "
        "kernels of its own, which make the same steps faster and round otherwise."
    )


def _before_the_kernels(run: Run) -> bool:
    commit: str | None = run.found["origin"]["commit"]
    return commit is not None and commit.startswith(BEFORE_THE_KERNELS)
