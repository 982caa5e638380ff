"""Pictures that could not be read, listed beside the vectors of the others."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gspool.search.decode_ahead import Broken


class BadList:
    """Pictures that could not be read, in a CSV file beside the vectors, line by line as they are met."""

    def __init__(self, out: Path) -> None:
        self.path = out.with_name(f"{out.name}.bad.csv")
        self.count = 0
        # The bad ones of an earlier run are met again, unless they have been put right.
        self.path.unlink(missing_ok=True)

    def add(self, broken: Broken) -> None:
        """Write a line, so that it is there even if the run ends here."""
        is_new = self.count == 0
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8", newline="") as file:
            lines = csv.writer(file)
            if is_new:
                lines.writerow(("path", "reason"))
            lines.writerow((broken.listed.path, broken.reason))
        self.count += 1

    @property
    def path_if_any(self) -> Path | None:
        """Give the list, or None where nothing was bad."""
        return self.path if self.count else None
