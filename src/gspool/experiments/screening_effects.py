"""Main effects of the factorial seed by seed, with and without its lowest corner."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any, NamedTuple

from gspool.experiments import screening_design as design
from gspool.experiments.benchmark.arms import Arm
from gspool.experiments.mu_trend import by_seed
from gspool.experiments.paired import in_words, seed_difference, verdict


class Effects(NamedTuple):
    """Main effects in points, one a seed: from all corners, and by least squares from all but the lowest."""

    whole: dict[str, list[float]]
    without: dict[str, list[float]]
    lowest: Arm
    below: float

    @property
    def seeds(self) -> int:
        """How many seeds every corner was trained with."""
        return len(self.whole["epsilon"])

    def standing(self) -> list[str]:
        """Name the factors whose effect keeps its sign without the lowest corner, and its size within a factor of two.

        Example:
            >>> whole = {"mu": [-1.2, -0.8], "epsilon": [-2.0, -2.0], "zsr": [-1.0, -1.0]}
            >>> without = {"mu": [-0.7, -0.7], "epsilon": [-0.3, -0.3], "zsr": [0.1, 0.1]}
            >>> Effects(whole, without, Arm("c2", "gsp"), 5.0).standing()
            ['mu']
        """
        means = {name: (fmean(points), fmean(self.without[name])) for name, points in self.whole.items()}
        return [name for name, (points, left) in means.items() if points and 0.5 <= left / points <= 2]

    def of_one_corner(self, factor: str) -> bool:
        """Say whether the interval of an effect leaves 0 out, and the effect does not stand without the lowest corner.

        It is there, but cannot be given to one of the factors that meet in a corner.
        """
        return verdict(seed_difference(self.whole[factor])) != "cannot tell" and factor not in self.standing()

    def told(self, factor: str) -> str:
        """Write the effect of a factor with its interval, where there are seeds for one."""
        points = seed_difference(self.whole[factor])
        return in_words(points) if self.seeds > 1 else f"{points['mean']:+.2f}"


def corners_of(found: dict[str, float], loss: str) -> dict[design.Corner, float] | None:
    """Give validation MAP@R by corner from that by arm; None where one is missing."""
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
    """Give the effects of every seed that all corners were trained with; None where there is no such seed.

    The lowest corner is that of the means over these seeds, the same one for all of them.
    """
    seeds = [found for reached in by_seed(value).values() if (found := corners_of(reached, loss)) is not None]
    return _effects(seeds, loss) if seeds else None


def paper_effects(loss: str) -> Effects:
    """Give the effects of the paper's own table, as of one seed.

    Example:
        >>> found = paper_effects("c2")
        >>> found.standing(), found.lowest.variant
        (['epsilon', 'zsr'], 'm 128, mu 0.7, epsilon 20, zsr 0.5')
    """
    corners = corners_of(design.paper_figures(loss), loss)
    assert corners is not None
    return _effects([corners], loss)


def _effects(seeds: Sequence[dict[design.Corner, float]], loss: str) -> Effects:
    means = {corner: fmean(found[corner] for found in seeds) for corner in design.CORNERS}
    lowest = min(means, key=means.__getitem__)
    below = fmean(figure for corner, figure in means.items() if corner is not lowest) - means[lowest]
    whole = [main_effects(found) for found in seeds]
    without = [main_effects(found | {lowest: foretold(found, lowest)}) for found in seeds]
    arm = design.corner_arms(loss)[design.CORNERS.index(lowest)]
    return Effects(_by_factor(whole), _by_factor(without), arm, below)


def _by_factor(seeds: Sequence[dict[str, float]]) -> dict[str, list[float]]:
    return {factor: [points[factor] for points in seeds] for factor in design.FACTORS}


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
