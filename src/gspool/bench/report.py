"""Report what was measured: a table and a closing line for people, a JSON record for programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gspool.bench.measure import Cost, Measured, Row
from gspool.bench.settings import UNIT
from gspool.provenance import device_name, write_result

# The layer that the closing line is about; otherwise the last layer named.
SWAP = "gsp"
# Load per core above which a warning is printed.
BUSY = 0.5
# Ratio of the 90 % time to the 10 % time above which a warning is printed.
WIDE = 2.0


def shown(measured: Measured) -> str:
    """Return the setting, the table, what was left out, warnings, and the closing line."""
    left_out = [f"left out: {each.title}, because {each.reason}" for each in measured.refused]
    lines = [setting(measured), "", table(measured), "", *left_out, *warnings(measured), closing(measured)]
    return "\n".join(lines)


def warnings(measured: Measured) -> list[str]:
    """Return why the times may be wrong: other programs were running, or times vary widely."""
    found = []
    if measured.busy is not None and measured.busy > BUSY:
        found.append(
            f"warning: the load was {measured.busy:.1f} per core in the minute before; if it still was, times are too "
            "long, most of all those of layers with many small steps"
        )
    costs = [(row.title, cost) for row in measured.rows for cost in (row.alone, row.network) if cost is not None]
    wide = dict.fromkeys(title for title, cost in costs if cost.time.high > WIDE * cost.time.low)
    if wide:
        found.append(
            f"warning: the times of {', '.join(wide)} vary widely; measure again while nothing else runs, or longer"
        )
    return found


def setting(measured: Measured) -> str:
    """Describe what was measured, and on which device."""
    settings = measured.settings
    step = "forward and backward" if settings.backward else "forward only"
    sizes = ", ".join(dict.fromkeys(row.size for row in measured.rows))
    layout = ", channels last" if settings.channels_last else ""
    behind = "" if settings.model is None else f" after {settings.model} with random weights"
    return (
        f"{settings.batch} images, {measured.rows[0].channels} channels, map {sizes}{behind}; "
        f"{settings.dtype}{layout}, {step}; {device_name(measured.device)}"
    )


def table(measured: Measured) -> str:
    """Return one row per layer: times of the layer alone, and of the whole network if there is one."""
    lines = [_head(measured), *(_cells(row, measured) for row in measured.rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return "\n".join(
        "  ".join(
            [line[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True))]
        )
        for line in lines
    )


def _head(measured: Measured) -> list[str]:
    head = ["layer", *(["map"] if _several(measured) else []), "median ms", "10-90 %", "images/s", "x GAP"]
    if measured.device.type == "cuda":
        head.append("peak MiB")
    if measured.settings.model is not None:
        head += ["network ms", "10-90 %", "images/s", "vs GAP", "share"]
        if measured.device.type == "cuda":
            head.append("peak MiB")
    return head


def _cells(row: Row, measured: Measured) -> list[str]:
    unit = unit_of(row, measured.rows)
    batch = measured.settings.batch
    # The choice of auto is shown if there was one.
    chosen = row.backend is not None and measured.device.type == "cuda" and measured.settings.backend == "auto"
    title = f"{row.title} ({row.backend})" if chosen else row.title
    cells = [title, *([row.size] if _several(measured) else []), *_times(row.alone, batch)]
    cells.append(f"{row.alone.time.median / unit.alone.time.median:.2f}")
    cells += _memory(row.alone)
    if row.network is not None and unit.network is not None:
        cells += _times(row.network, batch)
        cells += [
            f"{percent_more(row.network, unit.network):+.1f} %",
            f"{100 * share(row):.2g} %",
            *_memory(row.network),
        ]
    return cells


def _several(measured: Measured) -> bool:
    return len({row.size for row in measured.rows}) > 1


def _times(cost: Cost, batch: int) -> list[str]:
    time = cost.time
    digits = 3 if time.median < 10 else 1
    return [
        f"{time.median:.{digits}f}",
        f"{time.low:.{digits}f}-{time.high:.{digits}f}",
        f"{1e3 * batch / time.median:,.0f}" if time.median < 1e2 * batch else f"{1e3 * batch / time.median:,.2f}",
    ]


def _memory(cost: Cost) -> list[str]:
    return [] if cost.memory is None else [f"{cost.memory / 2**20:,.1f}"]


def unit_of(row: Row, rows: Sequence[Row]) -> Row:
    """Find average pooling on the same map."""
    return next(each for each in rows if each.title == UNIT and each.size == row.size)


def share(row: Row) -> float:
    """Return the time of a layer alone over that of the network's step with it."""
    return 0.0 if row.network is None else row.alone.time.median / row.network.time.median


def percent_more(cost: Cost, unit: Cost) -> float:
    """Return by how many percent a step takes longer than with average pooling."""
    return 100 * (cost.time.median / unit.time.median - 1)


def closing(measured: Measured) -> str:
    """Summarise in a line the cost of GSP, or else of the last layer named, instead of average pooling."""
    others = [row for row in measured.rows if row.title != UNIT]
    if not others:
        return "Only gap was measured; name a layer to compare, --layers gsp"
    chosen = [row for row in others if row.name == SWAP] or [row for row in others if row.title == others[-1].title]
    lines = []
    for size in dict.fromkeys(row.size for row in chosen):
        # Of several backends or settings, the fastest.
        row = min((each for each in chosen if each.size == size), key=lambda each: each.alone.time.median)
        lines.append(_swap(row, unit_of(row, measured.rows), measured))
    return " ".join(lines)


def _swap(row: Row, unit: Row, measured: Measured) -> str:
    ours, theirs = row.alone.time, unit.alone.time
    added = ours.median - theirs.median
    more = f"{abs(added):.3g} ms {'longer' if added >= 0 else 'less'} per step of {measured.settings.batch} images"
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


def write_record(path: Path, measured: Measured, command: str) -> dict[str, Any]:
    """Write settings and rows with command, commit, device and versions, and return what was written."""
    value = {
        "settings": asdict(measured.settings),
        "rows": [numbers(row, measured.rows, measured.settings.batch) for row in measured.rows],
        "refused": [each._asdict() for each in measured.refused],
        "closing": closing(measured),
        "busy_before": measured.busy,
    }
    libraries = ["timm"] if (measured.settings.model or "").startswith("timm/") else []
    if any(row.backend == "triton" for row in measured.rows):
        libraries.append("triton")
    return write_result(path, value, command=command, seeds=[0], libraries=libraries, device=measured.device)


def numbers(row: Row, rows: Sequence[Row], batch: int) -> dict[str, Any]:
    """Return a row as plain numbers; those of the whole network, if there is one, begin with ``network_``."""
    unit = unit_of(row, rows)
    found = {
        "layer": row.title,
        "backend": row.backend,
        "parameters": row.parameters,
        "channels": row.channels,
        "map": row.size,
        **_cost(row.alone, unit.alone, batch),
    }
    if row.network is not None and unit.network is not None:
        found |= {f"network_{name}": value for name, value in _cost(row.network, unit.network, batch).items()}
        found["share_percent"] = 100 * share(row)
    return found


def _cost(cost: Cost, unit: Cost, batch: int) -> dict[str, Any]:
    return {
        "median_ms": cost.time.median,
        "low_ms": cost.time.low,
        "high_ms": cost.time.high,
        "images_per_second": 1e3 * batch / cost.time.median,
        "times_gap": cost.time.median / unit.time.median,
        "repeats": cost.repeats,
        "peak_bytes": cost.memory,
    }
