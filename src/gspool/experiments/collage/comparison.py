"""How rows of the collage tables stand to each other: ahead, behind, or too close to tell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from gspool.experiments.experiment import mean_and_deviation

Rows = Sequence[Mapping[str, Any]]


class Figure(NamedTuple):
    """MAP@R of a layer in percent, over so many seeds."""

    name: str
    mean: float
    std: float | None
    seeds: int

    @property
    def shown(self) -> str:
        """The mean with its deviation.

        Example:
            >>> Figure("GSP", 16.783, 0.37, 3).shown
            '16.78 ± 0.37'
        """
        return mean_and_deviation(self.mean, self.std)

    @property
    def named(self) -> str:
        """The same after the name of the layer."""
        return f"{self.name} {self.shown}"


def figure_of(rows: Rows, name: str, loss: str) -> Figure | None:
    """Find the figure of a layer with a loss; None where it has not been run.

    Example:
        >>> row = {"row": "GAP", "loss": "c2", "map@r": 6.69, "std": 0.06, "by_seed": {"0": 6.7, "1": 6.68}}
        >>> figure_of([row], "GAP", "c2")
        Figure(name='GAP', mean=6.69, std=0.06, seeds=2)
    """
    for row in rows:
        if (row["row"], row["loss"]) == (name, loss):
            return Figure(name, row["map@r"], row["std"], len(row["by_seed"]))
    return None


def apart(one: Figure, other: Figure) -> bool:
    """Whether two means differ by more than the larger of their deviations; never where one has no deviation.

    Example:
        >>> delf = Figure("DeLF", 24.97, 0.4, 3)
        >>> apart(Figure("GSP+ZSR", 25.12, 0.38, 3), delf), apart(Figure("GSP+ZSR", 25.50, 0.38, 3), delf)
        (False, True)
    """
    if one.std is None or other.std is None:
        return False
    return round(abs(one.mean - other.mean), 2) > max(one.std, other.std)


def compared(one: Figure, other: Figure) -> str:
    """Say how one stands to another.

    Example:
        >>> compared(Figure("GSP", 19.0, 0.2, 3), Figure("GAP", 16.0, 0.5, 3))
        'GSP 19.00 ± 0.20 is ahead of GAP 16.00 ± 0.50'
        >>> compared(Figure("GSP", 16.1, 0.2, 3), Figure("GAP", 16.0, 0.5, 3))
        'GSP 16.10 ± 0.20 is beside GAP 16.00 ± 0.50, cannot tell'
    """
    if not apart(one, other):
        return f"{one.named} is beside {other.named}, cannot tell"
    return f"{one.named} is {'ahead of' if one.mean > other.mean else 'behind'} {other.named}"


class Standing(NamedTuple):
    """Where a row stands among others: which are ahead, which too close, which have too few seeds or are missing."""

    compared: int
    ahead: list[Figure]
    beside: list[Figure]
    few_seeds: list[Figure]
    missing: list[str]

    @property
    def first(self) -> bool:
        """Whether it is ahead of all others, every one of them with all seeds, by more than the deviations."""
        return bool(self.compared) and not (self.ahead or self.beside or self.few_seeds or self.missing)

    @property
    def rival(self) -> Figure | None:
        """The best of those that it is not ahead of."""
        return max([*self.ahead, *self.beside, *self.few_seeds], key=lambda other: other.mean, default=None)


def standing(figure: Figure, others: Mapping[str, Figure | None], seeds: int) -> Standing:
    """Compare a row with others by their names; ``seeds`` is how many every row ought to have.

    Example:
        >>> others = {"GAP": Figure("GAP", 8.0, 0.1, 3), "DeLF": Figure("DeLF", 25.0, None, 1), "SOLAR": None}
        >>> found = standing(Figure("GSP+ZSR", 25.1, 0.4, 3), others, seeds=3)
        >>> found.first, found.few_seeds[0].name, found.missing
        (False, 'DeLF', ['SOLAR'])
    """
    there = sorted((other for other in others.values() if other is not None), key=lambda other: -other.mean)
    whole = [other for other in there if min(other.seeds, figure.seeds) == seeds]
    return Standing(
        compared=len(others),
        ahead=[other for other in whole if apart(figure, other) and other.mean > figure.mean],
        beside=[other for other in whole if not apart(figure, other)],
        few_seeds=[other for other in there if other not in whole],
        missing=[name for name, other in others.items() if other is None],
    )
