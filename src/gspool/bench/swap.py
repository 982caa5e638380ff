"""What it costs to put a layer in the place of average pooling, by itself and in a whole network."""

from __future__ import annotations

from collections.abc import Sequence

from gspool.bench.layer_words import UNIT
from gspool.bench.measure import Cost, Measured, Row

# What a person who asks about this package would put in; otherwise it is the last layer named.
SWAP = "gsp"


def unit_of(row: Row, rows: Sequence[Row]) -> Row:
    """Find average pooling on the same map."""
    return next(each for each in rows if each.title == UNIT and each.size == row.size)


def share(row: Row) -> float:
    """Give the part of a network's step that its layer takes: its time alone, over that of the step with it."""
    return 0.0 if row.network is None else row.alone.time.median / row.network.time.median


def percent_more(cost: Cost, unit: Cost) -> float:
    """Give by how many percent a step takes longer than with average pooling."""
    return 100 * (cost.time.median / unit.time.median - 1)


def closing(measured: Measured) -> str:
    """Say in a line what it costs to put GSP, or else the layer named last, in the place of average pooling."""
    others = [row for row in measured.rows if row.title != UNIT]
    if not others:
        return "Only gap was measured; name what you would put in its place, --layers gsp"
    chosen = [row for row in others if row.name == SWAP] or [row for row in others if row.title == others[-1].title]
    sentences = []
    for size in dict.fromkeys(row.size for row in chosen):
        # Of several backends or settings the fastest: that is what one would take.
        row = min((each for each in chosen if each.size == size), key=lambda each: each.alone.time.median)
        sentences.append(_swap(row, unit_of(row, measured.rows), measured))
    return " ".join(sentences)


def _swap(row: Row, unit: Row, measured: Measured) -> str:
    ours, theirs = row.alone.time, unit.alone.time
    added = ours.median - theirs.median
    more = f"{abs(added):.3g} ms {'longer' if added >= 0 else 'less'} a step of {measured.settings.batch} images"
    words = f"{row.title} instead of gap, map {row.size}: {more}, {ours.median / theirs.median:.2f} times GAP"
    if ours.overlaps(theirs):
        words += " (within the spread)"
    if row.network is None or unit.network is None:
        return f"{words}."
    whole, before = row.network, unit.network
    words += (
        f"; the whole step of {measured.settings.model} takes {whole.time.median:.4g} ms with it and "
        f"{before.time.median:.4g} ms with gap, {percent_more(whole, before):+.1f} %"
    )
    return f"{words} (within the spread)." if whole.time.overlaps(before.time) else f"{words}."
