"""Files of vectors, .lance, .parquet or .npz: written piece by piece, whole after any crash, and gone on with."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import pyarrow as pa
import pyarrow.parquet as pq
from filelock import FileLock, Timeout

from gspool.search import npz_stream
from gspool.search.lance_table import LanceWriter
from gspool.search.vector_rows import VectorRows, VectorSettings, settings_of

SUFFIXES = (".lance", ".parquet", ".npz")
# What a row group of Parquet holds, and so what is in memory when one is read.
GROUP = 4096


class VectorWriter(Protocol):
    """Rows in, a file out."""

    rows: int

    def paths(self) -> Iterator[str]:
        """Give the paths that are there already."""
        ...

    def append(self, rows: VectorRows) -> None:
        """Add rows, all of them or none; they survive a crash from here on."""
        ...

    def finish(self) -> None:
        """Make the file whole."""
        ...


def open_writer(path: Path, settings: VectorSettings) -> VectorWriter:
    """Open a file of vectors to add to it, a new one or one that is there.

    Raises:
        ValueError: if its ending is none of .lance, .parquet and .npz, or it holds vectors of other settings.
    """
    if path.suffix not in SUFFIXES:
        raise ValueError(f"vectors are written to a {', '.join(SUFFIXES)} file, got {path}")
    return LanceWriter(path, settings) if path.suffix == ".lance" else PartsWriter(path, settings)


@contextmanager
def only_writer(path: Path) -> Iterator[None]:
    """Keep a second process from writing to the same file at the same time; a crash lets go of the lock by itself.

    Raises:
        ValueError: if another process is writing.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path.with_name(f".{path.name}.lock"))
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        raise ValueError(f"another process is writing to {path}; wait for it, or write to another file") from error
    try:
        yield
    finally:
        Path(lock.lock_file).unlink(missing_ok=True)
        lock.release()


class PartsWriter:
    """Write a .parquet or .npz file by way of parts beside it, since neither format can be appended to.

    Each part is written aside and renamed, and named by its first row. `finish` joins what was there and the parts into
    a new file, renames it over the old one and deletes the parts; those that a crash has left behind after that step
    begin below the file's rows, and are known by it.
    """

    def __init__(self, path: Path, settings: VectorSettings) -> None:
        self.path, self.settings = path, settings
        self.folder = path.with_name(f"{path.name}.parts")
        self.rows = 0
        if path.exists():
            settings.check_same(read_settings(path), path)
            self.rows = count_rows(path)
        for part in self._parts():
            if int(part.stem.partition("-")[2]) < self.rows:
                part.unlink()
            else:
                settings.check_same(read_settings(part), part)
                self.rows += count_rows(part)

    def _parts(self) -> list[Path]:
        return sorted(self.folder.glob("rows-*.parquet"))

    def paths(self) -> Iterator[str]:
        """Give the paths of the file and of the parts."""
        for file in self._files():
            for piece in read_pieces(file, ("path",)):
                yield from piece["path"].to_pylist()

    def _files(self) -> list[Path]:
        return [*([self.path] if self.path.exists() else []), *self._parts()]

    def append(self, rows: VectorRows) -> None:
        """Write another part."""
        table = rows.table(self.settings, self.rows)
        self.folder.mkdir(parents=True, exist_ok=True)
        part = self.folder / f"rows-{self.rows:012d}.parquet"
        aside = part.with_suffix(".writing")
        pq.write_table(table, aside, row_group_size=GROUP)
        os.replace(aside, part)
        self.rows += table.num_rows

    def finish(self) -> None:
        """Join the parts; without any, a file that is there stays as it is."""
        files = self._files()
        if files == [self.path]:
            shutil.rmtree(self.folder, ignore_errors=True)
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        aside = self.path.with_name(f".{self.path.name}.writing")
        if self.path.suffix == ".npz":
            npz_stream.write_npz(aside, lambda: (piece for file in files for piece in read_pieces(file)), self.settings)
        else:
            with pq.ParquetWriter(aside, self.settings.schema()) as writer:
                for file in files:
                    for piece in read_pieces(file):
                        writer.write_table(piece, row_group_size=GROUP)
        os.replace(aside, self.path)
        shutil.rmtree(self.folder, ignore_errors=True)


def read_settings(path: Path) -> VectorSettings:
    """Read which model made a .parquet or .npz file.

    Raises:
        ValueError: if it is damaged, or not written by gspool.
    """
    if path.suffix == ".npz":
        return npz_stream.read_settings(path)
    try:
        return settings_of(pq.read_schema(path), path)
    except pa.ArrowInvalid as error:
        raise ValueError(f"{path} is no readable Parquet file ({error}); delete it and write it again") from error


def count_rows(path: Path) -> int:
    """Count the vectors of a .parquet or .npz file without reading them."""
    if path.suffix == ".npz":
        return npz_stream.count_rows(path)
    return int(pq.read_metadata(path).num_rows)


def read_pieces(path: Path, columns: tuple[str, ...] | None = None) -> Iterator[pa.Table]:
    """Give the rows of a .parquet or .npz file, a few thousand at a time."""
    if path.suffix == ".npz":
        schema = npz_stream.read_settings(path).schema()
        names = columns or tuple(schema.names)
        for piece in npz_stream.read_npz(path, names):
            arrays = [_as_column(piece, name, schema.field(name)) for name in names]
            yield pa.table(arrays, schema=pa.schema([schema.field(name) for name in names], schema.metadata))
        return
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(batch_size=GROUP, columns=None if columns is None else [*columns]):
            yield pa.Table.from_batches([batch])


def _as_column(piece: dict, name: str, field: pa.Field) -> pa.Array:
    if name == "vector":
        return pa.FixedSizeListArray.from_arrays(pa.array(piece[name].reshape(-1)), field.type.list_size)
    if name == "label":
        return pa.array([text or None for text in piece[name].tolist()], field.type)
    return pa.array(piece[name].tolist(), field.type)


def copy_to_lance(source: Path, out: Path) -> None:
    """Copy a .parquet or .npz file into a new Lance table, piece by piece.

    Raises:
        ValueError: if the source is damaged, or not written by gspool.
    """
    writer = LanceWriter(out, read_settings(source))
    for piece in read_pieces(source):
        writer.append_table(piece)
