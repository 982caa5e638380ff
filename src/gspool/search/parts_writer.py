"""A .parquet or .npz file of vectors, written by way of parts beside it, since neither format can be appended to."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from gspool.search import npz_stream, vector_pieces
from gspool.search.vector_pieces import read_pieces, read_settings
from gspool.search.vector_rows import COLUMNS, REMEMBERED, VectorRows, VectorSettings

NOWHERE = -1


class PartsWriter:
    """Add rows to a .parquet or .npz file, and replace rows of it.

    Each part is written aside and renamed, and numbered. `finish` joins what was there and the parts into a new file,
    renames it over the old one and deletes the parts. Of rows with one number the newest counts: parts that a crash has
    left behind after they were joined say once more what the file says already.
    """

    def __init__(self, path: Path, settings: VectorSettings) -> None:
        self.path, self.settings = path, settings
        self.folder = path.with_name(f"{path.name}.parts")
        # These two are little beside vectors, and known again the next time: they wait for the end in memory.
        self.amended: list[pa.Table] = []
        self.removed: list[int] = []
        self.next_row = 0
        for file in self._files():
            settings.check_same(read_settings(file), file)
            for rows in _numbers(file):
                self.next_row = max(self.next_row, 1 + int(rows.max(initial=NOWHERE)))
        self.rows = int(np.count_nonzero(self._newest() != NOWHERE))

    def _parts(self) -> list[Path]:
        return sorted(self.folder.glob("rows-*.parquet"))

    def _files(self) -> list[Path]:
        return [*([self.path] if self.path.exists() else []), *self._parts()]

    def _newest(self) -> np.ndarray:
        """Tell for every row which of the files holds it as it is now."""
        newest = np.full(self.next_row, NOWHERE, dtype=np.int32)
        for number, file in enumerate(self._files()):
            for rows in _numbers(file):
                newest[rows] = number
        newest[self.removed] = NOWHERE
        return newest

    def _pieces(self, columns: tuple[str, ...] = COLUMNS) -> Iterator[pa.Table]:
        newest = self._newest()
        for number, file in enumerate(self._files()):
            for piece in read_pieces(file, columns):
                yield piece.filter(newest[piece["row"].to_numpy()] == number)

    def known(self) -> Iterator[pa.Table]:
        """Give what the rows of the file and of the parts remember of their pictures, some thousands at a time."""
        return self._pieces(REMEMBERED)

    def append(self, rows: VectorRows) -> None:
        """Write another part."""
        table = rows.table(self.settings, self.next_row)
        self.folder.mkdir(parents=True, exist_ok=True)
        last = max((int(part.stem.partition("-")[2]) for part in self._parts()), default=-1)
        part = self.folder / f"rows-{last + 1:012d}.parquet"
        aside = part.with_suffix(".writing")
        pq.write_table(table, aside, row_group_size=vector_pieces.GROUP)
        os.replace(aside, part)
        new = table.num_rows - rows.replacing
        self.rows, self.next_row = self.rows + new, self.next_row + new

    def amend(self, rows: pa.Table) -> None:
        """Note what rows shall remember from now on, but for their vectors."""
        self.amended.append(rows)

    def remove(self, rows: Sequence[int]) -> None:
        """Note rows to leave out."""
        self.removed += rows
        self.rows -= len(rows)

    def finish(self) -> None:
        """Join the parts; without any, and with nothing noted, a file that is there stays as it is."""
        if self._files() != [self.path] or self.amended or self.removed:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            aside = self.path.with_name(f".{self.path.name}.writing")
            amendment = _Amendment(self.amended, self.next_row)
            if self.path.suffix == ".npz":
                npz_stream.write_npz(aside, lambda: map(amendment.applied_to, self._pieces()), self.settings)
            else:
                with pq.ParquetWriter(aside, self.settings.schema()) as writer:
                    for piece in self._pieces():
                        writer.write_table(amendment.applied_to(piece), row_group_size=vector_pieces.GROUP)
            os.replace(aside, self.path)
        shutil.rmtree(self.folder, ignore_errors=True)
        self.amended, self.removed = [], []


class _Amendment:
    """What rows shall remember, found by their numbers."""

    def __init__(self, tables: list[pa.Table], next_row: int) -> None:
        self.table = pa.concat_tables(tables).combine_chunks() if tables else None
        self.place = np.full(next_row, NOWHERE, dtype=np.int64)
        if self.table is not None:
            self.place[self.table["row"].to_numpy()] = np.arange(self.table.num_rows)

    def applied_to(self, piece: pa.Table) -> pa.Table:
        places = self.place[piece["row"].to_numpy()]
        mask = places != NOWHERE
        if self.table is None or not mask.any():
            return piece
        found = self.table.take(places[mask])
        for name in found.column_names:
            column = pc.replace_with_mask(piece[name].combine_chunks(), pa.array(mask), found[name].combine_chunks())
            piece = piece.set_column(piece.column_names.index(name), piece.schema.field(name), column)
        return piece


def _numbers(file: Path) -> Iterator[np.ndarray]:
    return (piece["row"].to_numpy() for piece in read_pieces(file, ("row",)))
