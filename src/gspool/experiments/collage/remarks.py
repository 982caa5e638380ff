"""What the collage tables say beside the verdict: how far from the paper, and what other settings change."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from gspool.experiments.collage.comparison import Rows, compared, figure_of, stands
from gspool.experiments.collage.names import BACKBONES
from gspool.experiments.collage.recipe import ZSR
from gspool.experiments.collage.rows import ROWS
from gspool.experiments.collage.search_text import LOSS_NAMES, different, place_name
from gspool.experiments.collage.verdict import BEYOND, OURS, TIMES, WITHOUT

BY_SUB_CLASS = ("GAP", WITHOUT, OURS)
FURTHEST = 4


def furthest(rows: Rows) -> str:
    """Name the layers whose figures differ most from the paper's, with each loss."""
    said = []
    for loss, shown in LOSS_NAMES.items():
        pairs = {row.name: (figure_of(rows, row.name, loss), row.paper) for row in ROWS}
        off = {
            name: ours.mean - paper[loss]
            for name, (ours, paper) in pairs.items()
            if ours is not None and paper is not None
        }
        if off:
            most = sorted(off, key=lambda name: -abs(off[name]))[:FURTHEST]
            mean = sum(map(abs, off.values())) / len(off)
            told = ", ".join(f"{name} {off[name]:+.1f}" for name in most)
            said.append(f"{shown} {told} (mean of all {len(off)} distances {mean:.1f})")
    return f"Furthest from the paper's figures, in points: {'; '.join(said)}." if said else ""


def by_sub_class(rows: Rows) -> str:
    """Say what the figures are where only images of the same class of CIFAR-100 count as right."""
    known = {(row["row"], row["loss"]): row.get("by_sub_class") for row in rows}
    said = [
        f"{shown} {', '.join(f'{name} {known[name, loss]:.2f}' for name in BY_SUB_CLASS if known.get((name, loss)))}"
        for loss, shown in LOSS_NAMES.items()
        if known.get((WITHOUT, loss))
    ]
    if not said:
        return ""
    return (
        "The labels are the 16 super-classes, two classes of CIFAR-100 each on test. Counting only images of the same "
        f"one of these 32 as right: {'; '.join(said)}."
    )


def beside_gap(rows: Rows) -> str:
    """Say how GSP, without and with the regularisation, stands to GAP in a table."""
    said = []
    for loss, shown in LOSS_NAMES.items():
        gap = figure_of(rows, "GAP", loss)
        ours = [each for name in (WITHOUT, OURS) if (each := figure_of(rows, name, loss)) is not None]
        if gap is not None and ours:
            said.append(f"- {shown}: {'; '.join(compared(each, gap) for each in ours)}.")
    return "\n".join(said)


def lead_left(fine_tuned: Rows, frozen: Rows) -> str:
    """Say how much of the lead of GSP+ZSR over GAP is left where the backbone learns too."""
    leads = {shown: (lead(fine_tuned, loss), lead(frozen, loss)) for loss, shown in LOSS_NAMES.items()}
    known = {shown: (here, there) for shown, (here, there) in leads.items() if here is not None and there is not None}
    if not known:
        return ""
    told = "; ".join(f"{shown} {here.shown} (frozen {there.shown})" for shown, (here, there) in known.items())
    return f"{OURS} beside GAP where the backbone learns: {told}."


class Lead(NamedTuple):
    """How far the mean of GSP+ZSR is ahead of that of GAP, and how it stands to so many times GAP by its interval."""

    times: float
    points: float
    beyond: str

    @property
    def shown(self) -> str:
        """All in words.

        Example:
            >>> Lead(2.31, 8.75, "ahead").shown
            '2.3 times, +8.8 points, more than 2 times'
        """
        return f"{self.times:.1f} times, {self.points:+.1f} points, {BEYOND[self.beyond]}"


def lead(rows: Rows, loss: str) -> Lead | None:
    """Measure the way from GAP to GSP+ZSR; None where one of them has not been run."""
    gap, ours = figure_of(rows, "GAP", loss), figure_of(rows, OURS, loss)
    if gap is None or ours is None:
        return None
    return Lead(ours.mean / gap.mean, ours.mean - gap.mean, stands(ours, gap, TIMES))


def share_of_distilled(distilled: Rows, frozen: Rows) -> str:
    """Say which part of GAP's figure on the objects alone is reached on collages."""
    said = []
    for loss, shown in LOSS_NAMES.items():
        alone = figure_of(distilled, "GAP", loss)
        found = [figure_of(frozen, name, loss) for name in (OURS, "GAP")]
        if alone is not None and None not in found:
            told = ", ".join(f"{each.name} {100 * each.mean / alone.mean:.0f} %" for each in found if each is not None)
            said.append(f"{shown} {told}")
    return (
        f"On collages, with the frozen backbone, this part of GAP's figure here is reached: {'; '.join(said)}."
        if said
        else ""
    )


def tuned_settings(best: Mapping[str, Mapping[str, Any]]) -> str:
    """Say which settings the tuned rows have: lambda, and where a layer has none of those that were changed."""
    gsp = {place: asked for place, asked in best.items() if place.startswith("gsp ")}
    weights = [
        f"{_where(place)}: {asked['zsr'] or ZSR:g} (the search chose {asked['zsr']:g})" for place, asked in gsp.items()
    ]
    # With the other backbone every layer has another setting than in the frozen table.
    same = [
        _where(place)
        for place, asked in gsp.items()
        if not BACKBONES[asked["flavour"]] and not different({**asked, "options": {}, "zsr": ZSR})
    ]
    said = [
        "GAP and GSP have their own best settings of the search above. DeLF and GeMean+GSP have those of GSP, as far "
        "as they have them; nothing was searched for these two.",
        f"The rows {WITHOUT} and {OURS} differ in lambda alone: {WITHOUT} has 0, {OURS} the search's, or the paper's "
        f"{ZSR:g} where the search chose 0. Lambda of {OURS}: {'; '.join(weights)}.",
    ]
    if same:
        said.append(
            f"DeLF has none of the settings changed with {'; '.join(same)}: there its row is the frozen table's."
        )
    return " ".join(said)


def _where(place: str) -> str:
    """Name the loss and the backbone of a place in the search.

    Example:
        >>> _where("gsp c2 preactivation-bottleneck")
        'C2, ResNet20 (pre-activation)'
    """
    return place_name(place).partition(" ")[2]
