"""Whether GSP with its regularisation keeps what the paper promises on collages: by figures, like for like."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from gspool.experiments.collage.comparison import Figure, Rows, Standing, apart, figure_of, standing
from gspool.experiments.collage.rows import ROWS, find_row
from gspool.experiments.collage.search_text import LOSS_NAMES
from gspool.experiments.experiment import Verdict

# The paper's GSP is with the regularisation.
OURS, WITHOUT = "GSP+ZSR", "GSP"
# What the promise is taken to be: so many times GAP, and no more points than this below the paper.
TIMES, POINTS = 2.0, 3.0
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
    def distance(self) -> float:
        """Points above the paper; below it where negative."""
        return self.ours.mean - self.paper


def judged(rows: Rows, loss: str, seeds: int, others: Sequence[str] = SAME_SIZE) -> Judged | None:
    """Compare GSP+ZSR with the rest; None where it or GAP has not been run."""
    ours, gap = figure_of(rows, OURS, loss), figure_of(rows, "GAP", loss)
    paper, paper_gap = find_row(OURS).paper, find_row("GAP").paper
    if ours is None or gap is None or paper is None or paper_gap is None:
        return None
    found = standing(ours, {name: figure_of(rows, name, loss) for name in others}, seeds)
    return Judged(ours, gap, paper[loss], paper[loss] / paper_gap[loss], found)


def verdict(record: dict[str, Any]) -> Verdict:
    """Judge the promise by the table at the paper's settings."""
    return verdict_of(record["value"]["frozen"], len(record["seeds"]))


def verdict_of(rows: Rows, seeds: int) -> Verdict:
    """Judge: twice GAP with both losses, or not; first of its size and near the paper, or only in part."""
    found = {shown: judged(rows, loss, seeds) for loss, shown in LOSS_NAMES.items()}
    there = {shown: each for shown, each in found.items() if each is not None}
    if len(there) < len(found):
        lacking = " and ".join(shown for shown in found if shown not in there)
        return Verdict("cannot tell", f"GAP or {OURS} has not been run with {lacking}")
    times = " and ".join(f"{each.times:.1f}" for each in there.values())
    because = [
        f"{OURS} {times} times GAP with {' and '.join(there)}",
        f"{distances([each.distance for each in there.values()])} the paper",
        rivals(there),
    ]
    if min(each.times for each in there.values()) < TIMES:
        return Verdict("no", ", ".join(because))
    whole = all(each.standing.first and each.distance >= -POINTS for each in there.values())
    return Verdict("yes" if whole else "partly", ", ".join(because))


def rivals(found: dict[str, Judged]) -> str:
    """Name the best that GSP+ZSR is not ahead of, with each loss, or say that it is first."""
    if all(each.standing.first for each in found.values()):
        return "first of its size"
    head = "not first" if any(each.standing.ahead for each in found.values()) else "not clearly first"
    best = {shown: each.standing.rival for shown, each in found.items()}
    there = {shown: each for shown, each in best.items() if each is not None}
    names = {each.name for each in there.values()}
    if len(names) == 1 and len(there) == len(found):
        return f"{head}: {names.pop()} {', '.join(f'{each.mean:.2f}' for each in there.values())}"
    told = [f"{each.name} {each.mean:.2f} with {shown}" for shown, each in there.items()]
    return f"{head}: {', '.join(told) or 'rows are missing'}"


def bullets(rows: Rows, seeds: int, others: Sequence[str] = SAME_SIZE, backbone: str = "") -> str:
    """Say of each loss whether the promise is kept."""
    said = []
    for loss, shown in LOSS_NAMES.items():
        each = judged(rows, loss, seeds, others)
        told = f"cannot tell, GAP or {OURS} has not been run." if each is None else judgement(each, seeds)
        said.append(f"- {shown}{backbone}: {told}")
    return "\n".join(said)


def judgement(each: Judged, seeds: int) -> str:
    """Say how many times GAP it is, how far from the paper, and which rows it is not ahead of."""
    return (
        f"{each.ours.named} is {each.times:.1f} times GAP ({each.gap.shown}; paper {each.paper_times:.1f} times), "
        f"{points(each.distance)} the paper's {each.paper:.2f}. {place(each, seeds)}"
    )


def points(distance: float) -> str:
    """Write a distance in words.

    Example:
        >>> points(-7.24)
        '7.2 points below'
    """
    return f"{abs(distance):.1f} points {'above' if distance >= 0 else 'below'}"


def distances(found: Sequence[float]) -> str:
    """Write several distances, in short where all lie on one side.

    Example:
        >>> distances([-7.24, -6.04]), distances([-7.24, 1.0])
        ('7.2 and 6.0 points below', '7.2 points below and 1.0 points above')
    """
    sides = {each >= 0 for each in found}
    said = [points(each) for each in found]
    return " and ".join([f"{abs(each):.1f}" for each in found[:-1]] + said[-1:] if len(sides) == 1 else said)


def place(each: Judged, seeds: int) -> str:
    """Say which rows are ahead and which too close to tell; "first" only where nothing speaks against it."""
    found, size = each.standing, f"{each.standing.compared} other rows of its size"
    if found.first:
        return f"First among {found.compared + 1} rows of its size, by more than the deviations."
    said = []
    if found.ahead:
        said.append(f"Behind {len(found.ahead)} of {size}: {listed(found.ahead)}.")
    if found.beside and found.ahead:
        said.append(f"Too close to tell from {listed(found.beside)}.")
    elif found.beside:
        near = f"{each.ours.shown} against {listed(found.beside)}"
        said.append(f"Beside {len(found.beside)} of {size}, cannot tell: {near}.")
    if found.few_seeds:
        few = ", ".join(f"{_marked(other)} {other.mean:.2f} ({other.seeds})" for other in found.few_seeds)
        said.append(f"Not judged, because not all {seeds} seeds are there: {few}.")
    if found.missing:
        said.append(f"Not run: {', '.join(found.missing)}.")
    return " ".join(said)


def listed(figures: Iterable[Figure]) -> str:
    """List rows with their figures."""
    return ", ".join(f"{_marked(each)} {each.shown}" for each in figures)


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
    told = "; ".join(
        f"{label} {ours.mean - without.mean:+.2f} ({'beyond' if apart(ours, without) else 'within'} the deviations)"
        for label, without, ours in known
    )
    lower = sum(ours.mean < without.mean for _, without, ours in known)
    return (
        f"What the regularisation does, from {WITHOUT} to {OURS}, in points: {told}. It lowers the mean in {lower} of "
        f"{len(known)} cases."
    )
