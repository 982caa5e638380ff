"""Which setting of the search the validation classes choose."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

from gspool.experiments.benchmark.arms import Arm
from gspool.experiments.benchmark.search import search_arms
from gspool.experiments.benchmark.store import Run

Place = tuple[int, int]


class Choice(NamedTuple):
    """The setting that is furthest ahead of GAP on validation classes.

    ``ahead`` is by how many points, over the ``places``, folds and seeds, in which all ``among`` settings that were
    tried have been trained beside GAP.
    """

    arm: Arm
    ahead: float
    places: tuple[Place, ...]
    among: int


def chosen_by_validation(runs: Sequence[Run], loss: str) -> Choice | None:
    """Compare the settings that were tried with a loss where all of them were trained; None where there is no place.

    Folds and seeds differ by more than settings do: a setting that was repeated more often than others is compared by
    those of its runs alone that have a partner in every other setting. Runs that time cut short do not count.

    Example:
        >>> def run(arm, fold, validation):
        ...     asked = {"arm": arm, "fold": fold, "seed": 0}
        ...     return Run(asked, {"ending": "patience", "validation": validation})
        >>> runs = [run("c2 gap", fold, 0.50) for fold in (0, 1)]
        >>> runs += [run("c2 gsp epsilon 20", 0, 0.51), run("c2 gsp learned", 0, 0.50), run("c2 gsp learned", 1, 0.60)]
        >>> choice = chosen_by_validation(runs, "c2")
        >>> choice.arm.variant, round(choice.ahead, 2), choice.places, choice.among
        ('epsilon 20', 1.0, ((0, 0),), 2)
    """
    gap = _validation(runs, f"{loss} gap")
    tried = [(arm, found) for arm in search_arms((loss,)) if (found := _validation(runs, arm.name))]
    places = sorted(set(gap).intersection(*(found for _, found in tried))) if tried else []
    if not places:
        return None
    ahead = [100 * fmean(found[place] - gap[place] for place in places) for _, found in tried]
    best = max(range(len(tried)), key=ahead.__getitem__)
    return Choice(tried[best][0], ahead[best], tuple(places), len(tried))


def best_arms(losses: Sequence[str], runs: Sequence[Run]) -> list[Arm]:
    """Give for every loss the setting that validation chooses.

    Raises:
        ValueError: if there is no fold and seed in which every setting of a loss that was tried was trained beside GAP.
    """
    chosen = []
    for loss in losses:
        choice = chosen_by_validation(runs, loss)
        if choice is None:
            raise ValueError(
                f"no fold has every setting of the search that was tried with {loss}, and GAP, with the same seed: "
                f"train them first, `--arms both --losses {loss} --seeds 0` for example, and choose among them then"
            )
        chosen.append(choice.arm)
    return chosen


def _validation(runs: Sequence[Run], arm: str) -> dict[Place, float]:
    """Give the validation of the runs of an arm that came to their end, by fold and seed."""
    return {
        run.place: run.found["validation"]
        for run in runs
        if run.asked["arm"] == arm and run.found["ending"] != "time" and run.found["validation"] is not None
    }
