"""What the effects of the factorial show of the paper's promise, part by part, by intervals over seeds."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any, Literal

from gspool.experiments import screening_design as design
from gspool.experiments.experiment import Holds, Verdict
from gspool.experiments.paired import interval, seed_difference, verdict
from gspool.experiments.screening_effects import Effects, effects_of

# The paper: lower is better for these, and epsilon matters most.
LOWER_IS_BETTER = ("mu", "epsilon", "zsr")
# Of the number of prototypes it says that it hardly counts. What that is taken to be: an effect of less than so many
# points, about twice what the paper's own table gives (-0.25 with C2, -0.27 with PNCA).
HARDLY = 0.5

State = Literal["seen", "not seen", "cannot tell"]


def lower_is_better(found: Effects, factor: str) -> State:
    """Say whether an effect is below 0 beyond its interval and stands; one of a single corner is none of the factor."""
    word = verdict(seed_difference(found.whole[factor]))
    if word == "cannot tell":
        return "cannot tell"
    return "seen" if word == "behind" and factor in found.standing() else "not seen"


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
    return {
        "epsilon matters most": matters_most(found),
        **{f"lower {factor} is better": lower_is_better(found, factor) for factor in LOWER_IS_BETTER},
        "prototypes hardly count": hardly_counts(found.whole["prototypes"]),
    }


def seen(value: dict[str, Any]) -> Verdict:
    """Judge the promise: "yes" where every part of it is seen with both losses, by intervals over seeds.

    One seed decides nothing: what another would have given is not known, so that no effect has an interval.
    """
    found = {loss: each for loss in design.LOSSES if (each := effects_of(value, loss)) is not None}
    if len(found) < len(design.LOSSES):
        return Verdict("cannot tell", "no seed has been trained with every corner of the factorial")
    moved = "; ".join(
        f"{factor} of {loss} {each.told(factor)}, without the lowest corner {fmean(each.without[factor]):+.2f}"
        for factor in ("epsilon", "prototypes")
        for loss, each in found.items()
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
