"""Report what was measured: a table and a closing line for people, a JSON record for programs."""

from __future__ import annotations

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
    return "\n".join([_setting(measured), "", table(measured), "", *left_out, *_warnings(measured), closing(measured)])


def _setting(measured: Measured) -> str:
    settings = measured.settings
    step = "forward and backward" if settings.backward else "forward only"
    sizes = ", ".join(dict.fromkeys(row.size for row in measured.rows))
    layout = ", channels last" if settings.channels_last else ""
    behind = "" if settings.model is None else f" after {settings.model} with random weights"
    return (
        f"{settings.batch} images, {measured.rows[0].channels} channels, map {sizes}{behind}; "
        f"{settings.dtype}{layout}, {step}; {device_name(measured.device)}"
    )


def _warnings(measured: Measured) -> list[str]:
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


def table(measured: Measured) -> str:
    """Return one row per layer: times of the layer alone, and of the whole network if there is one."""
    settings, gpu = measured.settings, measured.device.type == "cuda"
    several = len({row.size for row in measured.rows}) > 1
    memory = ["peak MiB"] if gpu else []
    head = ["layer", *(["map"] if several else []), "median ms", "10-90 %", "images/s", "x GAP", *memory]
    if settings.model is not None:
        head += ["network ms", "10-90 %", "images/s", "vs GAP", "share", *memory]
    lines = [head]
    for row in measured.rows:
        found = numbers(row, measured)
        # The choice of auto is shown if there was one.
        chosen = f" ({row.backend})" if row.backend is not None and gpu and settings.backend == "auto" else ""
        cells = [row.title + chosen, *([row.size] if several else [])]
        cells += _cells(row.alone, settings.batch, f"{found['times_gap']:.2f}")
        if row.network is not None:
            more, share = 100 * (found["network_times_gap"] - 1), found["share_percent"]
            cells += _cells(row.network, settings.batch, f"{more:+.1f} %", f"{share:.2g} %")
        lines.append(cells)
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]) for line in lines)


def _cells(cost: Cost, batch: int, *ratios: str) -> list[str]:
    time, rate = cost.time, 1e3 * batch / cost.time.median
    digits = 3 if time.median < 10 else 1
    return [
        f"{time.median:.{digits}f}",
        f"{time.low:.{digits}f}-{time.high:.{digits}f}",
        f"{rate:,.0f}" if rate > 10 else f"{rate:,.2f}",
        *ratios,
        *([] if cost.memory is None else [f"{cost.memory / 2**20:,.1f}"]),
    ]


def closing(measured: Measured) -> str:
    """Summarise in a line the cost of GSP, or else of the last layer named, instead of average pooling."""
    others = [row for row in measured.rows if row.title != UNIT]
    if not others:
        return "Only gap was measured; name a layer to compare, --layers gsp"
    chosen = [row for row in others if row.name == SWAP] or [row for row in others if row.title == others[-1].title]
    # Of several backends or settings, the fastest on each map.
    fastest = [
        min((row for row in chosen if row.size == size), key=lambda row: row.alone.time.median)
        for size in dict.fromkeys(row.size for row in chosen)
    ]
    return " ".join(_swap(row, measured) for row in fastest)


def _swap(row: Row, measured: Measured) -> str:
    unit = measured.unit_of(row)
    ours, theirs = row.alone.time, unit.alone.time
    added = ours.median - theirs.median
    more = f"{abs(added):.3g} ms {'longer' if added >= 0 else 'less'} per step of {measured.settings.batch} images"
    words = f"{row.title} instead of gap, map {row.size}: {more}, {ours.median / theirs.median:.2f} times GAP"
    words += " (within the spread)" * ours.overlaps(theirs)
    if row.network is not None and unit.network is not None:
        ours, theirs = row.network.time, unit.network.time
        words += (
            f"; the whole step of {measured.settings.model} takes {ours.median:.4g} ms with it and "
            f"{theirs.median:.4g} ms with gap, {100 * (ours.median / theirs.median - 1):+.1f} %"
        )
        words += " (within the spread)" * ours.overlaps(theirs)
    return f"{words}."


def write_record(path: Path, measured: Measured, command: str) -> None:
    """Write settings and rows with command, commit, device and versions."""
    value = {
        "settings": asdict(measured.settings),
        "rows": [numbers(row, measured) for row in measured.rows],
        "refused": [each._asdict() for each in measured.refused],
        "closing": closing(measured),
        "busy_before": measured.busy,
    }
    libraries = ["timm"] if (measured.settings.model or "").startswith("timm/") else []
    if any(row.backend == "triton" for row in measured.rows):
        libraries.append("triton")
    write_result(path, value, command=command, seeds=[0], libraries=libraries, device=measured.device)


def numbers(row: Row, measured: Measured) -> dict[str, Any]:
    """Return a row as plain numbers; those of the whole network, if there is one, begin with ``network_``."""
    unit, batch = measured.unit_of(row), measured.settings.batch
    found: dict[str, Any] = {"layer": row.title, "backend": row.backend, "parameters": row.parameters}
    found |= {"channels": row.channels, "map": row.size, **_cost(row.alone, unit.alone, batch)}
    if row.network is not None and unit.network is not None:
        found |= {f"network_{name}": value for name, value in _cost(row.network, unit.network, batch).items()}
        found["share_percent"] = 100 * row.alone.time.median / row.network.time.median
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
