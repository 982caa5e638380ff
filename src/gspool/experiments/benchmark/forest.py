"""Differences from average pooling with their intervals, one line each: losses, layers, settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from gspool.experiments.benchmark.arms import POOLINGS
from gspool.experiments.benchmark.kept_rows import is_kept
from gspool.experiments.benchmark.paper import paper_values, pooling_table_value
from gspool.experiments.benchmark.tables import in_order, row_name
from gspool.experiments.benchmark.verdict import at_the_papers_setting

Arms = Sequence[dict[str, Any]]


class Line(NamedTuple):
    """How far something is ahead of GAP on the test classes, and a figure to compare that with."""

    label: str
    found: Mapping[str, Any]
    beside: float | None


def forests(value: dict[str, Any]) -> dict[str, tuple[str, dict[str, list[Line]]]]:
    """Give what is to be drawn by the end of its file's name: what stands beside our figures, and lines by panel.

    Panels without lines are left out, and so are pictures without panels.
    """
    arms = [arm for arm in in_order(value["arms"]) if arm["difference_from_gap"] is not None]
    layers = [arm for arm in arms if arm["pooling"] not in ("gap", "gsp")]
    settings = [arm for arm in arms if arm["pooling"] == "gsp" and arm["variant"] and not is_kept(arm)]
    data = value["data"]
    by_layer = _by_loss(layers, lambda arm: _line(arm, row_name(arm), paper_gain(data, arm)))
    by_setting = _by_loss(settings, lambda arm: _line(arm, row_name(arm), _watched(arm)))
    lines = [_line(arm, arm["loss"], paper_gain(data, arm)) for arm in at_the_papers_setting(arms)]
    drawn = {
        "losses": ("the paper's", {"GSP in the place of GAP": lines}),
        "layers": ("the paper's", by_layer),
        "settings": ("ours, validation classes", by_setting),
    }
    return {end: (beside, panels) for end, (beside, panels) in drawn.items() if any(panels.values())}


def _by_loss(arms: Arms, line: Callable[[dict[str, Any]], Line]) -> dict[str, list[Line]]:
    panels: dict[str, list[Line]] = {}
    for arm in arms:
        panels.setdefault(arm["loss"], []).append(line(arm))
    return panels


def _line(arm: Mapping[str, Any], label: str, beside: float | None) -> Line:
    found = arm["difference_from_gap"]
    return Line(f"{label}, {found['pairs']} pair{'s' * (found['pairs'] > 1)}", found, beside)


def _watched(arm: Mapping[str, Any]) -> float | None:
    watched = arm["validation_difference"]
    return None if watched is None else float(watched["mean"])


def paper_gain(data: str, arm: Mapping[str, Any]) -> float | None:
    """Give how far the paper's row is ahead of its GAP: Table 2 where it has one, on CUB else the pooling table."""
    loss, pooling = arm["loss"], arm["pooling"]
    ours, gap = paper_values(data, loss, pooling), paper_values(data, loss, "gap")
    if ours is not None and gap is not None and pooling in POOLINGS:
        return ours.map - gap.map
    row, base = pooling_table_value(loss, pooling, arm["variant"]), pooling_table_value(loss, "gap")
    return None if data != "cub" or row is None or base is None else row - base
