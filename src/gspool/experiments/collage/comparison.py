"""How rows of the collage tables stand to each other, by 95 % intervals over seeds: ahead, behind, or cannot tell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, variance
from typing import Any, NamedTuple

from gspool.experiments.experiment import mean_and_deviation
from gspool.experiments.paired import in_words, seed_difference, verdict

Rows = Sequence[Mapping[str, Any]]


class Figure(NamedTuple):
    """MAP@R of a layer in percent: the mean, its deviation over seeds, and what each of them gave."""

    name: str
    mean: float
    std: float | None
    by_seed: Mapping[str, float]

    @property
    def seeds(self) -> int:
        """How many seeds it comes from."""
        return len(self.by_seed)

    @property
    def shown(self) -> str:
        """The mean with its deviation.

        Example:
            >>> Figure("GSP", 16.783, 0.37, {"0": 16.4, "1": 16.8, "2": 17.15}).shown
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
        >>> row = {"row": "GAP", "loss": "c2", "map@r": 6.69, "std": 0.01, "by_seed": {"0": 6.7, "1": 6.68}}
        >>> figure_of([row], "GAP", "c2").named
        'GAP 6.69 ± 0.01'
    """
    for row in rows:
        if (row["row"], row["loss"]) == (name, loss):
            return Figure(name, row["map@r"], row["std"], row["by_seed"])
    return None


def difference(one: Figure, other: Figure, times: float = 1.0) -> dict[str, Any]:
    """Give how far one is ahead of so many times another, for `gspool.experiments.paired` to judge.

    Rows of the same seeds are compared seed by seed, because a seed draws the batches of both; others as two samples.

    Example:
        >>> one = Figure("GSP", 19.0, 0.1, {"0": 18.9, "1": 19.0, "2": 19.1})
        >>> other = Figure("GAP", 8.0, 0.1, {"0": 7.9, "1": 8.1, "2": 8.0})
        >>> in_words(difference(one, other)), in_words(difference(one, other, times=2))
        ('+11.00 (95 % interval +10.75 to +11.25)', '+3.00 (95 % interval +2.57 to +3.43)')
    """
    less = {seed: times * figure for seed, figure in other.by_seed.items()}
    if one.by_seed.keys() == less.keys():
        return seed_difference([figure - less[seed] for seed, figure in one.by_seed.items()])
    return welch([*one.by_seed.values()], [*less.values()])


def welch(one: Sequence[float], other: Sequence[float]) -> dict[str, Any]:
    """Give the difference of the means of two samples that do not pair, and its error (Welch).

    ``pairs`` is how many of them would have its degrees of freedom, rounded down, so that the interval is too wide if
    anything; it is 1 where a sample is a single value, of which no error is known.

    Example:
        >>> in_words(welch([10.0, 11.0, 12.0], [7.0, 8.0, 9.0, 8.0]))
        '+3.00 (95 % interval +0.75 to +5.25)'
    """
    mean = fmean(one) - fmean(other)
    if min(len(one), len(other)) < 2:
        return {"mean": mean, "error": 0.0, "pairs": 1}
    squares = [(variance(sample) / len(sample), len(sample) - 1) for sample in (one, other)]
    both = sum(square for square, _ in squares)
    # Samples without any spread leave 0 / 0; the smaller one's count is the least that it can be.
    least = min(freedom for _, freedom in squares)
    freedom = both**2 / sum(square**2 / freedom for square, freedom in squares) if both else least
    return {"mean": mean, "error": both**0.5, "pairs": max(int(freedom), least) + 1}


def stands(one: Figure, other: Figure, times: float = 1.0) -> str:
    """Say "ahead", "behind" or "cannot tell": the first two only where the interval of the difference leaves 0 out.

    Example:
        >>> gsp = Figure("GSP", 19.0, 1.0, {"0": 18.0, "1": 19.0, "2": 20.0})
        >>> stands(gsp, Figure("GAP", 8.0, 0.1, {"0": 8.0, "1": 8.1, "2": 7.9}))
        'ahead'
        >>> stands(gsp, Figure("DeLF", 17.5, 1.0, {"0": 17.5, "1": 16.5, "2": 18.5}))
        'cannot tell'
    """
    return verdict(difference(one, other, times))


def difference_told(one: Figure, other: Figure, times: float = 1.0) -> str:
    """Write how far one is ahead of so many times another, with the interval, or that seeds are too few for one.

    Example:
        >>> difference_told(Figure("GSP", 19.0, None, {"0": 19.0}), Figure("GAP", 8.0, None, {"0": 8.0}))
        '+11.00 (too few seeds for an interval)'
    """
    found = difference(one, other, times)
    return in_words(found) if found["pairs"] > 1 else f"{found['mean']:+.2f} (too few seeds for an interval)"


def compared(one: Figure, other: Figure) -> str:
    """Say how one stands to another.

    Example:
        >>> gap = Figure("GAP", 8.0, 0.1, {"0": 7.9, "1": 8.1, "2": 8.0})
        >>> compared(Figure("GSP", 9.0, 0.1, {"0": 8.9, "1": 9.0, "2": 9.1}), gap)
        'GSP 9.00 ± 0.10 is ahead of GAP 8.00 ± 0.10, +1.00 (95 % interval +0.75 to +1.25)'
        >>> compared(Figure("GSP", 8.1, 0.1, {"0": 8.0, "1": 8.1, "2": 8.2}), gap)
        'GSP 8.10 ± 0.10 cannot be told from GAP 8.00 ± 0.10, +0.10 (95 % interval -0.15 to +0.35)'
    """
    words = {"ahead": "is ahead of", "behind": "is behind", "cannot tell": "cannot be told from"}
    return f"{one.named} {words[stands(one, other)]} {other.named}, {difference_told(one, other)}"


class Standing(NamedTuple):
    """Where a row stands among others: those behind it, ahead, not to be told from it, with few seeds, missing."""

    compared: int
    behind: list[Figure]
    ahead: list[Figure]
    beside: list[Figure]
    few_seeds: list[Figure]
    missing: list[str]

    @property
    def first(self) -> bool:
        """Whether it is ahead of all others, every one of them with all seeds, beyond each interval."""
        return bool(self.compared) and len(self.behind) == self.compared

    @property
    def rival(self) -> Figure | None:
        """The best of those ahead of it; where none is, of those that may be."""
        return max(self.ahead or [*self.beside, *self.few_seeds], key=lambda other: other.mean, default=None)


def standing(figure: Figure, others: Mapping[str, Figure | None], seeds: int) -> Standing:
    """Compare a row with others by their names; ``seeds`` is how many every row ought to have.

    Example:
        >>> three = {"0": 25.0, "1": 25.1, "2": 25.2}
        >>> others = {"GAP": Figure("GAP", 8.0, 0.0, dict.fromkeys("012", 8.0)), "SOLAR": None}
        >>> others["DeLF"] = Figure("DeLF", 25.0, None, {"0": 25.0})
        >>> found = standing(Figure("GSP+ZSR", 25.1, 0.1, three), others, seeds=3)
        >>> found.first, found.behind[0].name, found.few_seeds[0].name, found.missing
        (False, 'GAP', 'DeLF', ['SOLAR'])
    """
    there = sorted((other for other in others.values() if other is not None), key=lambda other: -other.mean)
    whole = {other.name: stands(figure, other) for other in there if min(other.seeds, figure.seeds) == seeds}
    return Standing(
        compared=len(others),
        behind=[other for other in there if whole.get(other.name) == "ahead"],
        ahead=[other for other in there if whole.get(other.name) == "behind"],
        beside=[other for other in there if whole.get(other.name) == "cannot tell"],
        few_seeds=[other for other in there if other.name not in whole],
        missing=[name for name, other in others.items() if other is None],
    )
