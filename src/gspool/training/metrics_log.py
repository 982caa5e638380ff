"""Metrics of a run, row by row: metrics.csv and TensorBoard."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gspool.files import write_atomic

FILE, CURVES = "metrics.csv", "tensorboard"
STEP_COLUMNS = ("step", "loss", "loss_metric", "loss_zero_shot", "lr", "steps_per_second")


class MetricsLog:
    """Append rows of metrics; a resumed run first removes what came after its checkpoint.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     log = MetricsLog(Path(folder))
        ...     log.add(10, {"loss": 2.5})
        ...     log.close()
        ...     read_metrics(Path(folder))[0]["loss"]
        2.5
    """

    def __init__(self, folder: Path, first_step: int = 0, measures: tuple[str, ...] = ()) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.path = folder / FILE
        self.columns = (*STEP_COLUMNS, *measures)
        kept = [row for row in read_metrics(folder) if row["step"] <= first_step] if first_step else []
        text = io.StringIO()
        writer = csv.DictWriter(text, self.columns, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(kept)
        write_atomic(self.path, text.getvalue().encode())
        self.file = self.path.open("a", newline="", encoding="utf-8")
        self.writer = csv.DictWriter(self.file, self.columns)
        self.curves = SummaryWriter(str(folder / CURVES), purge_step=first_step + 1 if first_step else None)

    def add(self, step: int, values: Mapping[str, float | None]) -> None:
        """Write one row; what was not measured stays empty, other names are left out."""
        known = {name: value for name, value in values.items() if value is not None and name in self.columns}
        self.writer.writerow({"step": step, **{name: repr(float(value)) for name, value in known.items()}})
        self.file.flush()
        for name, value in known.items():
            self.curves.add_scalar(name.replace("@", "_at_"), value, step)

    def close(self) -> None:
        """Write out what is buffered."""
        self.file.close()
        self.curves.close()


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """Read metrics.csv; a row that a crash has truncated is left out."""
    path = folder / FILE
    if not path.is_file():
        return []
    rows = []
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["step"] and all(value is not None for value in row.values()):
                rows.append(
                    {"step": int(row["step"])}
                    | {name: float(value) for name, value in row.items() if name != "step" and value}
                )
    return rows
