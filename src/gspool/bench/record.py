"""What was measured, for a program: plain numbers, with a provenance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gspool.bench.measure import Cost, Measured, Row
from gspool.bench.swap import closing, share, unit_of
from gspool.provenance import write_result
from gspool.terminal.output import check_file_writable
from gspool.terminal.status import WrongArgumentsError


def check_place(path: Path) -> None:
    """Refuse now what could not be written after the measurement.

    Raises:
        WrongArgumentsError: if the file is not called .json.
        ValueError: if it cannot be written.
    """
    if path.suffix != ".json":
        raise WrongArgumentsError(f"the numbers are written as a JSON file: call it NAME.json, got {path}")
    check_file_writable(path, "--out")


def write_record(path: Path, measured: Measured, command: str) -> dict[str, Any]:
    """Write settings and rows together with command, commit, device and versions; give what was written."""
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
    """Give a row as plain numbers; those of the whole network, where there is one, begin with ``network_``."""
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
