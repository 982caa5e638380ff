"""Main effects of the factorial, with and without its lowest corner, and what of them stands."""

from __future__ import annotations

from typing import Any, NamedTuple

from gspool.experiments import screening_design as design
from gspool.experiments.benchmark.arms import Arm
from gspool.experiments.experiment import Verdict

# The paper: lower is better for these. Of the number of prototypes it says that it hardly counts.
LOWER_IS_BETTER = ("mu", "epsilon", "zsr")
# From this entropy on, GSP pools as average pooling does.
EQUAL = 0.999


class Effects(NamedTuple):
    """Main effects in points, from all corners, and by least squares from all but the lowest."""

    whole: dict[str, float]
    without: dict[str, float]
    lowest: Arm
    below: float

    def standing(self) -> list[str]:
        """Name the factors whose effect keeps its sign without the lowest corner, and its size within a factor of two.

        Example:
            >>> whole = {"mu": -1.0, "epsilon": -2.0, "zsr": -1.0}
            >>> Effects(whole, {"mu": -0.7, "epsilon": -0.3, "zsr": 0.1}, Arm("c2", "gsp"), 5.0).standing()
            ['mu']
        """
        ratios = {name: self.without[name] / points if points else 0.0 for name, points in self.whole.items()}
        return [name for name, ratio in ratios.items() if 0.5 <= ratio <= 2]


def effects(value: dict[str, Any], loss: str) -> dict[str, float] | None:
    """Give the main effect of each factor: the mean at its high level less the mean at its low, in points.

    None until all eight corners have been trained.
    """
    found = corner_figures(value, loss)
    return None if found is None else main_effects(found)


def corner_figures(value: dict[str, Any], loss: str) -> dict[design.Corner, float] | None:
    """Give validation MAP@R by corner; None until all have been trained."""
    found = {arm["arm"]: arm["validation_map"] for arm in value["arms"]}
    arms = design.corner_arms(loss)
    if any(found.get(arm.name) is None for arm in arms):
        return None
    return {corner: found[arm.name] for corner, arm in zip(design.CORNERS, arms, strict=True)}


def main_effects(found: dict[design.Corner, float]) -> dict[str, float]:
    """Compare the mean of the corners at the high level of each factor with that at its low."""
    points = {}
    for factor, (_, high) in design.FACTORS.items():
        above = [figure for corner, figure in found.items() if getattr(corner, factor) == high]
        below = [figure for corner, figure in found.items() if getattr(corner, factor) != high]
        points[factor] = sum(above) / len(above) - sum(below) / len(below)
    return points


def effects_of(value: dict[str, Any], loss: str) -> Effects | None:
    """Give the effects with and without the lowest corner; None until all corners have been trained."""
    found = corner_figures(value, loss)
    if found is None:
        return None
    lowest = min(found, key=found.__getitem__)
    others = {corner: figure for corner, figure in found.items() if corner is not lowest}
    below = sum(others.values()) / len(others) - found[lowest]
    arm = design.corner_arms(loss)[design.CORNERS.index(lowest)]
    return Effects(main_effects(found), main_effects(others | {lowest: foretold(found, lowest)}), arm, below)


def foretold(found: dict[design.Corner, float], left_out: design.Corner) -> float:
    """Give what effects that add up, fitted to the other corners by least squares, foretell of one.

    In its place it changes nothing of that fit, so that effects of all corners are then those of the others. Means over
    the others alone would mix the effects: a level would be there three times and the other four times.

    Example:
        >>> adding_up = {corner: float(corner.prototypes) for corner in design.CORNERS}
        >>> broken = adding_up | {design.CORNERS[-1]: 0.0}
        >>> round(foretold(broken, design.CORNERS[-1]), 6)
        128.0
    """
    effect = main_effects(found)
    middle = sum(found.values()) / len(found)
    fitted = middle + sum(
        points / 2 if getattr(left_out, name) == design.FACTORS[name][1] else -points / 2
        for name, points in effect.items()
    )
    # The part of its own fit that a corner of a balanced design decides.
    leverage = (1 + len(effect)) / len(found)
    return found[left_out] - (found[left_out] - fitted) / (1 - leverage)


def fewest_seeds(value: dict[str, Any]) -> int:
    """Give the smallest number of seeds that a corner was trained with; 0 where one is missing."""
    runs = {arm["arm"]: arm["runs"] for arm in value["arms"]}
    return min(runs.get(arm.name, 0) for loss in design.LOSSES for arm in design.corner_arms(loss))


def told(value: dict[str, Any]) -> str:
    """Write a line a loss, what follows from all, and what one seed cannot say; nothing until a factorial is whole."""
    found = {loss: effects_of(value, loss) for loss in design.LOSSES}
    lines = [_line(loss, each) for loss, each in found.items() if each is not None]
    if not lines:
        return ""
    few = fewest_seeds(value)
    known = "One seed an arm: no error of these effects is known. " if few < 2 else ""
    draw = (
        "The embedding is drawn after the prototypes, so that another m comes with another draw: with one seed the two "
        "effects cannot be told apart. "
        if few < 2
        else ""
    )
    rule = "An effect *stands* if it keeps its sign without the lowest corner, and its size within a factor of two."
    return "\n".join(lines) + f"\n\n{known}{draw}{rule}{_alike(value)}"


def _alike(value: dict[str, Any]) -> str:
    """Say how far settings of the grids lie apart that pool alike: a yardstick for effects without an error."""
    there = {arm["arm"]: arm for arm in value["arms"]}
    told_of = []
    for loss in design.LOSSES:
        own = [there[arm.name] for arm in design.grid_arms() if arm.loss == loss and arm.name in there]
        equal = [arm["validation_map"] for arm in own if arm["entropy"] >= EQUAL]
        if len(equal) > 1:
            told_of.append(f"{max(equal) - min(equal):.2f} points with {loss} ({len(equal)} settings)")
    if not told_of:
        return ""
    spans = " and ".join(told_of)
    return (
        f" Settings of the grid that pool alike, with weights all but equal (entropy from {EQUAL:g} on), still span "
        f"{spans}."
    )


def _line(loss: str, found: Effects) -> str:
    whole, without = (
        ", ".join(f"{factor} {points:+.2f}" for factor, points in each.items()) for each in (found.whole, found.without)
    )
    standing = found.standing()
    stands = f"Of {', '.join(standing)} the effect stands" if standing else "No effect stands"
    return (
        f"- {loss}, from the low level to the high, points of MAP@R: {whole}. The lowest corner, "
        f"{found.lowest.variant}, lies {found.below:.2f} below the mean of the others; without it, by least squares "
        f"over these: {without}. **{stands}.**"
    )


def seen(value: dict[str, Any]) -> Verdict:
    """Judge the promise: mu, epsilon and lambda have negative effects that stand, and epsilon the largest, everywhere.

    One seed an arm decides nothing: an effect of one training more or less is not told from chance.
    """
    found = {loss: each for loss in design.LOSSES if (each := effects_of(value, loss)) is not None}
    if len(found) < len(design.LOSSES):
        return Verdict("cannot tell", "not every corner of the factorial has been trained")
    kept = {loss: _promised(each) for loss, each in found.items()}
    told_of = ", ".join(f"{' and '.join(names)} ({loss})" for loss, names in kept.items() if names)
    moved = ", ".join(
        f"{each.whole['epsilon']:+.2f} and {each.without['epsilon']:+.2f} ({loss})" for loss, each in found.items()
    )
    because = (
        f"effect of epsilon with and without the lowest corner: {moved}; of the promised effects "
        f"{told_of or 'none'} stands"
    )
    if fewest_seeds(value) < 2:
        return Verdict("cannot tell", f"one seed an arm, no error known; {because}")
    largest = all(max(each.whole, key=lambda name: abs(each.whole[name])) == "epsilon" for each in found.values())
    if largest and all(len(names) == len(LOWER_IS_BETTER) for names in kept.values()):
        return Verdict("yes", because)
    return Verdict("partly" if any(kept.values()) else "no", because)


def _promised(found: Effects) -> list[str]:
    return [name for name in found.standing() if name in LOWER_IS_BETTER and found.whole[name] < 0]
