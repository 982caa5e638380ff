"""A table of vectors in Lance format: every append is a transaction, so a crash leaves whole rows."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import lancedb
import pyarrow as pa

from gspool.search.vector_rows import VectorRows, VectorSettings, settings_of

SUFFIX = ".lance"
# Older versions are only the steps of the last writing; a millisecond is the least that LanceDB takes without a word.
FORGET_AFTER = timedelta(milliseconds=1)


def open_table(path: Path) -> Any:
    """Open a Lance table by its folder ``NAME.lance``.

    Raises:
        ValueError: if the folder holds no such table.
    """
    try:
        return lancedb.connect(path.absolute().parent).open_table(path.stem)
    except (ValueError, RuntimeError, OSError) as error:
        raise ValueError(f"{path} is no Lance table ({error}); make it with gspool embed") from error


class LanceWriter:
    """Append rows to a table, which is made when there is none.

    Raises:
        ValueError: if the table holds vectors of other settings.
    """

    def __init__(self, path: Path, settings: VectorSettings) -> None:
        self.path, self.settings = path, settings
        if path.exists():
            self.table = open_table(path)
            settings.check_same(settings_of(self.table.schema, path), path)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            self.table = lancedb.connect(path.absolute().parent).create_table(path.stem, schema=settings.schema())
        self.rows = int(self.table.count_rows())

    def paths(self) -> Iterator[str]:
        """Give the paths that are there already, batch by batch."""
        for batch in self.table.search().select(["path"]).to_batches():
            yield from batch["path"].to_pylist()

    def append(self, rows: VectorRows) -> None:
        """Add rows, all of them or none."""
        self.append_table(rows.table(self.settings, self.rows))

    def append_table(self, rows: pa.Table) -> None:
        """Add rows of an Arrow table with the columns of the settings."""
        self.table.add(rows)
        self.rows += rows.num_rows

    def finish(self) -> None:
        """Join the many small files of an hour of appending."""
        self.table.optimize(cleanup_older_than=FORGET_AFTER)
