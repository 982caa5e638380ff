"""Whether GSP with its regularisation keeps what the paper promises on collages: by intervals, like for like."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from gspool.experiments.collage.comparison import (
    Figure,
    Rows,
    Standing,
    difference,
    difference_told,
    figure_of,
    standing,
    stands,
)
from gspool.experiments.collage.rows import ROWS, find_row
from gspool.experiments.collage.search_text import LOSS_NAMES
from gspool.experiments.experiment import Verdict
from gspool.experiments.paired import interval, seed_difference
from gspool.experiments.paired import verdict as sign_of

# The paper's GSP is with the regularisation.
OURS, WITHOUT = "GSP+ZSR", "GSP"
# Our measure of the promise, which the paper does not put in figures: so many times GAP, and no more points than this
# below the paper.
TIMES, POINTS = 2.0, 3.0
# How GSP+ZSR stands to so many times GAP, in words.
BEYOND = {
    "ahead": f"more than {TIMES:g} times",
    "behind": f"less than {TIMES:g} times",
    "cannot tell": f"not to be told from {TIMES:g} times",
}
# Rows with an embedding as long as GSP's, other than GSP itself.
SAME_SIZE = tuple(row.name for row in ROWS if "dim" not in row.changes and row.name not in (OURS, WITHOUT))


class Judged(NamedTuple):
    """GSP+ZSR with one loss, beside GAP, the paper and the other rows."""

    ours: Figure
    gap: Figure
    paper: float
    paper_times: float
    standing: Standing

    @property
    def times(self) -> float:
        """How many times GAP it is."""
        return self.ours.mean / self.gap.mean

    @property
    def beyond(self) -> str:
        """How it stands to `TIMES` times GAP: ahead, behind, or cannot tell."""
        return stands(self.ours, self.gap, TIMES)

    @property
    def distance(self) -> float:
        """Points above the paper; below it where negative."""
        return self.ours.mean - self.paper

    @property
    def near(self) -> bool:
        """Whether it is at most `POINTS` below the paper with all of its interval; of the paper's none is known."""
        least = self.paper - POINTS
        return sign_of(seed_difference([figure - least for figure in self.ours.by_seed.values()])) == "ahead"


def judged(rows: Rows, loss: str, seeds: int, others: Sequence[str] = SAME_SIZE) -> Judged | None:
    """Compare GSP+ZSR with the rest; None where it or GAP has not been run."""
    ours, gap = figure_of(rows, OURS, loss), figure_of(rows, "GAP", loss)
    paper, paper_gap = find_row(OURS).paper, find_row("GAP").paper
    if ours is None or gap is None or paper is None or paper_gap is None:
        return None
    found = standing(ours, {name: figure_of(rows, name, loss) for name in others}, seeds)
    return Judged(ours, gap, paper[loss], paper[loss] / paper_gap[loss], found)


def verdict(record: dict[str, Any]) -> Verdict:
    """Judge the promise by the table of the frozen backbone, and tell what is left of it where the backbone learns."""
    value, seeds = record["value"], len(record["seeds"])
    found = verdict_of(value["frozen"], seeds)
    told = times_where_it_learns(value["fine_tuned"], seeds)
    return Verdict(found.holds, "; ".join(part for part in (found.because, told) if part))


def times_where_it_learns(fine_tuned: Rows, seeds: int) -> str:
    """Say how many times GAP it is where the backbone learns too; nothing where that has not been run.

    The paper does not say whether its backbone learns, so a verdict on the frozen one alone would hide the choice.
    """
    known = {shown: judged(fine_tuned, loss, seeds) for loss, shown in LOSS_NAMES.items()}
    said = [f"{each.times:.1f} times GAP with {shown}" for shown, each in known.items() if each is not None]
    if not said:
        return ""
    return f"all this with a frozen backbone; where it learns, which the paper leaves open, {' and '.join(said)}"


def verdict_of(rows: Rows, seeds: int) -> Verdict:
    """Judge by intervals: "no" where it is less than twice GAP with a loss, "yes" only where it is more with both.

    It is "partly" where it is not first of its size or not near the paper, or more than twice with one loss alone.
    """
    found = {shown: judged(rows, loss, seeds) for loss, shown in LOSS_NAMES.items()}
    there = {shown: each for shown, each in found.items() if each is not None}
    if len(there) < len(found):
        lacking = " and ".join(shown for shown in found if shown not in there)
        return Verdict("cannot tell", f"GAP or {OURS} has not been run with {lacking}")
    because = "; ".join(f"{shown}: {reasons(each)}" for shown, each in there.items())
    beyond = {each.beyond for each in there.values()}
    if "behind" in beyond:
        return Verdict("no", because)
    if "ahead" not in beyond:
        return Verdict("cannot tell", because)
    whole = beyond == {"ahead"} and all(each.standing.first and each.near for each in there.values())
    return Verdict("yes" if whole else "partly", because)


def reasons(each: Judged) -> str:
    """Give what the verdict stands on, of one loss."""
    return (
        f"{OURS} {each.times:.1f} times GAP, less {TIMES:g} times GAP {difference_told(each.ours, each.gap, TIMES)}, "
        f"{points(each.distance)} the paper, {rival(each.standing)}"
    )


def rival(found: Standing) -> str:
    """Name the best row that is ahead of GSP+ZSR, or that may be; or say that it is first."""
    if found.first:
        return "first of its size"
    if found.rival is None:
        return "first of those of its size that have been run"
    return f"{'behind' if found.ahead else 'cannot be told from'} {found.rival.name} {found.rival.mean:.2f}"


def bullets(rows: Rows, seeds: int, others: Sequence[str] = SAME_SIZE, backbone: str = "") -> str:
    """Say of each loss whether the promise is kept."""
    said = []
    for loss, shown in LOSS_NAMES.items():
        each = judged(rows, loss, seeds, others)
        told = f"cannot tell, GAP or {OURS} has not been run." if each is None else judgement(each, seeds)
        said.append(f"- {shown}{backbone}: {told}")
    return "\n".join(said)


def judgement(each: Judged, seeds: int) -> str:
    """Say how many times GAP it is, how far from the paper, and how it stands to the other rows."""
    return (
        f"{each.ours.named} is {each.times:.1f} times GAP ({each.gap.shown}; paper {each.paper_times:.1f} times), "
        f"{points(each.distance)} the paper's {each.paper:.2f}. Less {TIMES:g} times GAP it has "
        f"{difference_told(each.ours, each.gap, TIMES)}: {BEYOND[each.beyond]}. {place(each, seeds)}"
    )


def points(distance: float) -> str:
    """Write a distance in words.

    Example:
        >>> points(-7.24)
        '7.2 points below'
    """
    return f"{abs(distance):.1f} points {'above' if distance >= 0 else 'below'}"


def place(each: Judged, seeds: int) -> str:
    """Say how many rows it is ahead of, which are ahead of it, and which it cannot be told from."""
    found = each.standing
    if found.first:
        return f"First among {found.compared + 1} rows of its size, every difference beyond its interval."
    said = [f"Ahead of {len(found.behind)} of {found.compared} other rows of its size"]
    if found.ahead:
        said.append(f"behind {len(found.ahead)}: {listed(each.ours, found.ahead)}")
    if found.beside:
        said.append(f"cannot be told from {len(found.beside)}: {listed(each.ours, found.beside)}")
    if found.few_seeds:
        few = ", ".join(f"{_marked(other)} {other.mean:.2f} ({other.seeds})" for other in found.few_seeds)
        said.append(f"not judged, because not all {seeds} seeds are there: {few}")
    if found.missing:
        said.append(f"not run: {', '.join(found.missing)}")
    return f"{'; '.join(said)}."


def listed(ours: Figure, others: Iterable[Figure]) -> str:
    """List rows with their figures, and the interval of ours less each."""
    return ", ".join(f"{_marked(other)} {other.shown}{_interval(ours, other)}" for other in others)


def _interval(ours: Figure, other: Figure) -> str:
    found = difference(ours, other)
    if found["pairs"] < 2:
        return ""
    low, high = interval(found)
    return f" [{low:+.2f} to {high:+.2f}]"


def _marked(figure: Figure) -> str:
    """Name a row, and say so where the paper's table does not have it."""
    return figure.name if find_row(figure.name).paper is not None else f"{figure.name} (not in the paper's table)"


def effect_of_zsr(rows: Rows, backbones: Iterable[str] = ("",)) -> str:
    """Say what the regularisation did, with each loss, in points; the names of tuned rows end in the backbone."""
    pairs = [
        (
            f"{shown}{backbone}",
            figure_of(rows, f"{WITHOUT}{backbone}", loss),
            figure_of(rows, f"{OURS}{backbone}", loss),
        )
        for backbone in backbones
        for loss, shown in LOSS_NAMES.items()
    ]
    known = [(label, without, ours) for label, without, ours in pairs if without is not None and ours is not None]
    if not known:
        return ""
    told = "; ".join(f"{label} {difference_told(ours, without)}" for label, without, ours in known)
    words = [stands(ours, without) for _, without, ours in known]
    return (
        f"What the regularisation does, from {WITHOUT} to {OURS}, in points: {told}. Of {len(known)} cases it raises "
        f"MAP@R in {words.count('ahead')}, lowers it in {words.count('behind')}, and leaves open which in "
        f"{words.count('cannot tell')}."
    )
