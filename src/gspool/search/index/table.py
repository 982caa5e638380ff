"""The store of vectors: a Lance table, where every append is a transaction, so that a crash leaves whole rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lancedb
import pyarrow as pa
import pyarrow.compute as pc

from gspool.search.index.rows import COLUMNS, ImageRecord, VectorSettings, as_table, settings_of

if TYPE_CHECKING:
    import numpy as np
    from jaxtyping import Float

# Older versions are only the steps of the last run; a millisecond is the least that LanceDB accepts quietly.
FORGET_AFTER = timedelta(milliseconds=1)
# Rows that one delete condition names.
REMOVED_AT_ONCE = 4096


def open_table(path: Path) -> Any:
    """Open a Lance table by its folder ``NAME.lance``; every read sees its newest version.

    Another process may write to a table that is open; it deletes the files of older versions when it is done.

    Raises:
        ValueError: if the folder holds no such table.
    """
    try:
        return lancedb.connect(path.absolute().parent, read_consistency_interval=timedelta(0)).open_table(path.stem)
    except (ValueError, RuntimeError, OSError) as error:
        raise ValueError(f"{path} is not a Lance table ({error}); write one with gspool embed") from error


class LanceWriter:
    """Append rows to a table, and replace and remove rows; the table is created if it does not exist.

    A table of version 0.1 gets the columns that it lacks, in one transaction, without values.

    Attributes:
        rows: how many the table holds.
        changed: whether anything was written since the table was opened.

    Raises:
        ValueError: if the table holds vectors of other settings, or cannot be written.
    """

    def __init__(self, path: Path, settings: VectorSettings) -> None:
        self.path, self.settings, self.changed = path, settings, False
        if path.exists():
            self.table = open_table(path)
            settings.check_same(settings_of(self.table.schema, path), path)
            missing = [field for field in settings.schema() if field.name not in self.table.schema.names]
            if missing:
                with self._writing():
                    self.table.add_columns(missing)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            with self._writing():
                self.table = lancedb.connect(path.absolute().parent).create_table(path.stem, schema=settings.schema())
        self.rows = int(self.table.count_rows())
        # Not the count: rows may have been removed, and a number belongs to one picture for good.
        self.next_row = 1 + max((pc.max(batch["row"]).as_py() for batch in self.read(["row"])), default=-1)

    def read(self, columns: Sequence[str] = COLUMNS) -> Iterator[pa.Table]:
        """Yield the rows, some thousands at a time."""
        for batch in self.table.search().select([*columns]).to_batches():
            if batch.num_rows:
                yield pa.Table.from_batches([batch]).select([*columns])

    def append(self, records: Sequence[ImageRecord], vectors: Float[np.ndarray, "N D"]) -> None:
        """Add images, or replace the rows that they name, all of them or none; they survive a crash from here on."""
        rows = as_table(records, vectors, self.settings, self.next_row)
        new = sum(record.row is None for record in records)
        if new == len(records):
            self.add(rows)
            return
        with self._writing():
            self.table.merge_insert("row").when_matched_update_all().when_not_matched_insert_all().execute(rows)
        self.rows, self.next_row = self.rows + new, self.next_row + new

    def add(self, rows: pa.Table) -> None:
        """Add new rows of an Arrow table."""
        with self._writing():
            self.table.add(rows)
        self.rows, self.next_row = self.rows + rows.num_rows, self.next_row + rows.num_rows

    def amend(self, rows: pa.Table) -> None:
        """Replace some columns of rows, but not their vectors: a table with a column row and the others."""
        with self._writing():
            self.table.merge_insert("row").when_matched_update_all().execute(rows)

    def remove(self, rows: Sequence[int]) -> None:
        """Remove rows by number."""
        for first in range(0, len(rows), REMOVED_AT_ONCE):
            some = rows[first : first + REMOVED_AT_ONCE]
            with self._writing():
                self.table.delete(f"row IN ({', '.join(map(str, some))})")
            self.rows -= len(some)

    def finish(self) -> None:
        """Join small files, and bring new rows into the approximate index, if there is one."""
        with self._writing():
            self.table.optimize(cleanup_older_than=FORGET_AFTER)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Report what Lance could not write in one sentence."""
        try:
            yield
        except (RuntimeError, OSError) as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            if "No space left" in str(error):
                reason = "no space left on the disk"
            raise ValueError(
                f"{self.path} could not be written ({reason}); rows saved before are kept. Make room, or repair the "
                "disk, and run the same command again"
            ) from error
        self.changed = True
