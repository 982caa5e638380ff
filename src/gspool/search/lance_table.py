"""A table of vectors in Lance format: every append is a transaction, so a crash leaves whole rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import lancedb
import pyarrow as pa
import pyarrow.compute as pc

from gspool.search.vector_rows import REMEMBERED, VectorRows, VectorSettings, settings_of

SUFFIX = ".lance"
# Older versions are only the steps of the last writing; a millisecond is the least that LanceDB takes without a word.
FORGET_AFTER = timedelta(milliseconds=1)
# Rows that one condition names.
REMOVED_AT_ONCE = 4096


def open_table(path: Path) -> Any:
    """Open a Lance table by its folder ``NAME.lance``; every reading is of its newest version.

    Another process may write to a table that is open, and deletes the files of older versions in the end.

    Raises:
        ValueError: if the folder holds no such table.
    """
    try:
        return lancedb.connect(path.absolute().parent, read_consistency_interval=timedelta(0)).open_table(path.stem)
    except (ValueError, RuntimeError, OSError) as error:
        raise ValueError(f"{path} is no Lance table ({error}); make it with gspool embed") from error


class LanceWriter:
    """Append rows to a table, which is made when there is none, and replace rows of it.

    A table of an earlier version gets the columns that it lacks, in one transaction, without values.

    Raises:
        ValueError: if the table holds vectors of other settings.
    """

    def __init__(self, path: Path, settings: VectorSettings) -> None:
        self.path, self.settings = path, settings
        if path.exists():
            self.table = open_table(path)
            settings.check_same(settings_of(self.table.schema, path), path)
            missing = [field for field in settings.schema() if field.name not in self.table.schema.names]
            if missing:
                self.table.add_columns(missing)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            self.table = lancedb.connect(path.absolute().parent).create_table(path.stem, schema=settings.schema())
        self.rows = int(self.table.count_rows())
        # Not the count: rows may have been taken out, and a number stays that of its picture.
        self.next_row = 1 + max((pc.max(batch["row"]).as_py() for batch in self._batches(["row"])), default=-1)

    def _batches(self, columns: list[str]) -> Iterator[pa.RecordBatch]:
        return (batch for batch in self.table.search().select(columns).to_batches() if batch.num_rows)

    def known(self) -> Iterator[pa.Table]:
        """Give what the rows remember of their pictures, some thousands at a time."""
        for batch in self._batches([*REMEMBERED]):
            yield pa.Table.from_batches([batch]).select(REMEMBERED)

    def append(self, rows: VectorRows) -> None:
        """Add and replace rows, all of them or none."""
        table = rows.table(self.settings, self.next_row)
        new = table.num_rows - rows.replacing
        if rows.replacing:
            matched = self.table.merge_insert("row").when_matched_update_all()
            matched.when_not_matched_insert_all().execute(table)
            self.rows, self.next_row = self.rows + new, self.next_row + new
        else:
            self.append_table(table)

    def append_table(self, rows: pa.Table) -> None:
        """Add rows of an Arrow table with the columns of the settings."""
        self.table.add(rows)
        self.rows, self.next_row = self.rows + rows.num_rows, self.next_row + rows.num_rows

    def amend(self, rows: pa.Table) -> None:
        """Replace what rows remember, but for their vectors."""
        self.table.merge_insert("row").when_matched_update_all().execute(rows)

    def remove(self, rows: Sequence[int]) -> None:
        """Take rows out."""
        for first in range(0, len(rows), REMOVED_AT_ONCE):
            some = rows[first : first + REMOVED_AT_ONCE]
            self.table.delete(f"row IN ({', '.join(map(str, some))})")
            self.rows -= len(some)

    def finish(self) -> None:
        """Join the many small files of an hour of appending, and bring new rows into the approximate index, if any."""
        self.table.optimize(cleanup_older_than=FORGET_AFTER)
