"""What was measured, for a person: a line about the setting, a table, and a line about what the swap costs."""

from __future__ import annotations

from gspool.bench.measure import Cost, Measured, Row
from gspool.bench.swap import closing, percent_more, share, unit_of
from gspool.provenance import device_name

# Programs that want a core, from which on a reader is warned.
BUSY = 0.5
# Times over each other, of the 90 % and the 10 %, from which on a reader is warned.
WIDE = 2.0


def shown(measured: Measured) -> str:
    """Write the setting, the table, what was left out, and what the swap costs."""
    left_out = [f"left out: {each.title}, because {each.reason}" for each in measured.refused]
    lines = [setting(measured), "", table(measured), "", *left_out, *warnings(measured), closing(measured)]
    return "\n".join(lines)


def warnings(measured: Measured) -> list[str]:
    """Say why the times may not be those of the layers: other programs before, or times that vary widely."""
    found = []
    if measured.busy is not None and measured.busy > BUSY:
        found.append(
            f"beware: in the minute before, {measured.busy:.1f} programs wanted each core; if they still ran, times "
            "are too long, most of all those of layers with many small steps"
        )
    costs = [(row.title, cost) for row in measured.rows for cost in (row.alone, row.network) if cost is not None]
    wide = dict.fromkeys(title for title, cost in costs if cost.time.high > WIDE * cost.time.low)
    if wide:
        found.append(
            f"beware: the times of {', '.join(wide)} vary widely; measure again while nothing else runs, or for longer"
        )
    return found


def setting(measured: Measured) -> str:
    """Say what was measured, and where."""
    settings = measured.settings
    step = "forward and backward" if settings.backward else "forward only"
    sizes = ", ".join(dict.fromkeys(row.size for row in measured.rows))
    layout = ", channels last" if settings.channels_last else ""
    behind = "" if settings.model is None else f" behind {settings.model} with random weights"
    return (
        f"{settings.batch} images, {measured.rows[0].channels} channels, map {sizes}{behind}; "
        f"{settings.dtype}{layout}, {step}; {device_name(measured.device)}"
    )


def table(measured: Measured) -> str:
    """Write one row a layer: times of the layer alone, and of the whole network where there is one."""
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
    # What auto has chosen is said where there was a choice.
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
