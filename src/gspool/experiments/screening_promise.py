"""What the factorial shows of the paper's promise, part by part, by intervals over seeds; where the grids are best."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any, Literal

from gspool.experiments import screening_design as design
from gspool.experiments.experiment import Holds, Verdict
from gspool.experiments.paired import interval, seed_difference, verdict
from gspool.experiments.screening_effects import Effects, effects_of
from gspool.experiments.screening_seeds import over_shared_seeds
from gspool.experiments.tuning_text import seeds_told

# The paper: lower is better for these, and epsilon matters most, whatever its sign.
LOWER_IS_BETTER = ("mu", "zsr")
# Of the number of prototypes it says that it hardly counts. What that is taken to be: an effect of less than so many
# points, about twice what the paper's own table gives (-0.25 with C2, -0.27 with PNCA).
HARDLY = 0.5
# Where the paper's grid is best: the number of prototypes and epsilon (Supp., Hyperparameter Selection).
PAPER_BEST = {"c2": (64, 5.0), "pnca": (64, 0.5)}

State = Literal["seen", "not seen", "made by one corner", "cannot tell"]


def lower_is_better(found: Effects, factor: str) -> State:
    """Say whether an effect is below 0 beyond its interval and stands; what one corner makes decides nothing."""
    word = verdict(seed_difference(found.whole[factor]))
    if found.of_one_corner(factor):
        return "made by one corner" if word == "behind" else "cannot tell"
    states: dict[str, State] = {"behind": "seen", "ahead": "not seen"}
    return states.get(word, "cannot tell")


def matters_most(found: Effects, factor: str = "epsilon") -> State:
    """Say whether the effect of a factor is larger than every other, whatever their signs, beyond the intervals.

    Example:
        >>> from gspool.experiments.benchmark.arms import Arm
        >>> small = {"mu": [0.1, 0.2, 0.1]}
        >>> matters_most(Effects(small | {"epsilon": [-3.0, -2.9, -3.1]}, {}, Arm("c2", "gsp"), 5.0))
        'seen'
    """
    sizes = {name: [points if fmean(each) > 0 else -points for points in each] for name, each in found.whole.items()}
    own = sizes.pop(factor)
    ahead = [seed_difference([one - two for one, two in zip(own, other, strict=True)]) for other in sizes.values()]
    words = {verdict(each) for each in ahead}
    return "seen" if words == {"ahead"} else "not seen" if "behind" in words else "cannot tell"


def hardly_counts(points: Sequence[float]) -> State:
    """Say whether an effect, one figure a seed, lies within `HARDLY` points of 0, or beyond, with all of its interval.

    Example:
        >>> hardly_counts([0.1, 0.2, 0.1]), hardly_counts([-2.9, -3.0, -2.8]), hardly_counts([0.1, 0.9, -0.2])
        ('seen', 'not seen', 'cannot tell')
        >>> hardly_counts([0.0])
        'cannot tell'
    """
    if len(points) < 2:
        return "cannot tell"
    low, high = interval(seed_difference(points))
    if low > -HARDLY and high < HARDLY:
        return "seen"
    return "not seen" if low > HARDLY or high < -HARDLY else "cannot tell"


def parts_of(found: Effects) -> dict[str, State]:
    """Judge the promise part by part."""
    hardly = "cannot tell" if found.of_one_corner("prototypes") else hardly_counts(found.whole["prototypes"])
    return {
        "epsilon matters most": matters_most(found),
        **{f"lower {factor} is better": lower_is_better(found, factor) for factor in LOWER_IS_BETTER},
        "prototypes hardly count": hardly,
    }


def seen(value: dict[str, Any]) -> Verdict:
    """Judge the promise: "yes" where every part of it is seen with both losses, by intervals over seeds.

    One seed decides nothing: what another would have given is not known, so that no effect has an interval.
    """
    found = {loss: each for loss in design.LOSSES if (each := effects_of(value, loss)) is not None}
    if len(found) < len(design.LOSSES):
        return Verdict("cannot tell", "no seed has been trained with every corner of the factorial")
    moved = "; ".join(
        f"{loss} {', '.join(f'{factor} {each.told(factor)}' for factor in each.whole)}" for loss, each in found.items()
    )
    single = [loss for loss, each in found.items() if each.seeds < 2]
    if single:
        because = f"one seed with every corner ({' and '.join(single)}), so that no effect has an interval"
        return Verdict("cannot tell", f"{because}; effects in points: {moved}")
    parts = {f"{part} ({loss})": state for loss, each in found.items() for part, state in parts_of(each).items()}
    return Verdict(whether(set(parts.values())), f"{in_groups(parts)}; effects in points: {moved}")


def whether(states: set[State]) -> Holds:
    """Put the parts of a promise together.

    Example:
        >>> whether({"seen"}), whether({"seen", "cannot tell"}), whether({"not seen", "cannot tell"})
        ('yes', 'partly', 'no')
        >>> whether({"made by one corner", "cannot tell"})
        'cannot tell'
    """
    if "seen" in states:
        return "yes" if states == {"seen"} else "partly"
    return "no" if "not seen" in states else "cannot tell"


def in_groups(parts: dict[str, State]) -> str:
    """List what was seen, what was not, and what cannot be told.

    Example:
        >>> in_groups({"epsilon matters most": "seen", "prototypes hardly count": "cannot tell"})
        'seen: epsilon matters most; cannot tell: prototypes hardly count'
    """
    groups = {state: [part for part, each in parts.items() if each == state] for state in dict.fromkeys(parts.values())}
    return "; ".join(f"{state}: {', '.join(names)}" for state, names in groups.items())


def grid_of(value: dict[str, Any], loss: str) -> dict[str, dict[str, Any]]:
    """Give the cells of a loss that were trained, and average pooling, over the seeds that all of them have."""
    return over_shared_seeds(value, [f"{loss} gap", *(arm.name for arm in design.grid_arms() if arm.loss == loss)])


def grid_told(value: dict[str, Any]) -> str:
    """Say where the paper's grids are best, where ours are, and how the paper's number of prototypes ranks in ours."""
    paper, ours, trained = [], [], []
    for loss in design.LOSSES:
        there = grid_of(value, loss)
        arms = [arm for arm in design.grid_arms() if arm.loss == loss]
        cells = {
            (arm.pooling_options["prototypes"], arm.pooling_options["epsilon"]): there[arm.name]["validation_map"]
            for arm in arms
            if arm.name in there
        }
        if len(cells) == len(arms) and PAPER_BEST[loss] in cells:
            trained += [there[arm.name] for arm in arms]
            paper.append(f"with {loss} at m = {PAPER_BEST[loss][0]} and epsilon {PAPER_BEST[loss][1]:g}")
            ours.append(f"with {loss} at {best_cell_told(cells, PAPER_BEST[loss])}")
    if not trained:
        return ""
    where = "" if value["data"] == design.DATA else f", on {design.DATA},"
    return (
        f"The paper's grid{where} is best {', '.join(paper)}. Ours is best {'; '.join(ours)}. Figures without an error "
        f"({seeds_told(trained)} a cell) decide nothing, and the cells of an m share the draw of its embedding: how an "
        "m ranks at one epsilon after another is one fact, not several."
    )


def best_cell_told(cells: dict[tuple[int, float], float], paper: tuple[int, float]) -> str:
    """Say which cell is best, how far the paper's is below it, and how the paper's m ranks at every epsilon.

    Example:
        >>> best_cell_told({(16, 0.5): 49.0, (64, 0.5): 48.0, (16, 5.0): 47.0, (64, 5.0): 47.5}, (64, 0.5))
        "m = 16 and epsilon 0.5 (49.00; the paper's cell 48.00), and m = 64 ranks 2, 1 of 2 from epsilon 0.5 to 5"
    """
    best = max(cells, key=cells.__getitem__)
    counts, epsilons = sorted({count for count, _ in cells}), sorted({epsilon for _, epsilon in cells})
    ranks = [1 + sum(cells[count, epsilon] > cells[paper[0], epsilon] for count in counts) for epsilon in epsilons]
    return (
        f"m = {best[0]} and epsilon {best[1]:g} ({cells[best]:.2f}; the paper's cell {cells[paper]:.2f}), and m = "
        f"{paper[0]} ranks {', '.join(map(str, ranks))} of {len(counts)} from epsilon {epsilons[0]:g} to "
        f"{epsilons[-1]:g}"
    )
