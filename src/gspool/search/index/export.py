"""Vectors as .parquet and .npz files for other programs: written from a Lance table, and read back into one."""

from __future__ import annotations

import json
import os
import shutil
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from lancedb.util import validate_table_name

from gspool.search.index.table import (
    COLUMNS,
    LanceWriter,
    VectorSettings,
    is_missing,
    open_table,
    vectors_column,
    vectors_of,
)

SUFFIXES = (".lance", ".parquet", ".npz")
# Rows of a row group of Parquet, and in memory at a time.
GROUP = 4096
# The name of a working table that is not whole, while it is filled or deleted.
ASIDE = "aside.lance"
# NumPy arrays have no missing values.
TEXTS = ("path", "label", "source")
UNKNOWN: dict[str, Any] = {**dict.fromkeys(COLUMNS, -1), **dict.fromkeys(TEXTS, "")}


def check_name(out: Path) -> None:
    """Check that vectors can be written to a file of this name.

    Raises:
        ValueError: if it ends in another way, or a table of LanceDB cannot have it.
    """
    if out.suffix not in SUFFIXES:
        raise ValueError(f"vectors are written to a {', '.join(SUFFIXES)} file, got {out}")
    if out.suffix == ".lance":
        try:
            validate_table_name(out.stem)
        except ValueError as error:
            raise ValueError(f"{out} cannot be written; give it another name. {error}") from error


def store_of(out: Path) -> Path:
    """Return the Lance table behind a file of vectors: itself, or the working table of an export."""
    return out if out.suffix == ".lance" else out.with_name(f"{out.name}.parts") / "vectors.lance"


def stored_precision(out: Path) -> str | None:
    """Return the precision of the vectors that a file or the table behind it holds; None if there are none."""
    store = store_of(out)
    if not is_missing(store):
        return VectorSettings.of(open_table(store).schema, store).precision
    return read_settings(out).precision if store != out and out.exists() else None


def open_store(out: Path, settings: VectorSettings) -> LanceWriter:
    """Open the table behind a file of vectors: a .lance file itself, or the working table of an export.

    The working table of ``FILE`` lies in ``FILE.parts`` until `finish_store` has written the file. A file that exists
    is read into it first. One with vectors of other settings is refused.
    """
    check_name(out)
    store = store_of(out)
    if store == out:
        return LanceWriter(out, settings)
    aside = store.with_name(ASIDE)
    unfinished = store.exists() or not out.exists()
    if not store.exists():
        shutil.rmtree(aside, ignore_errors=True)
        if out.exists():
            copy_to_lance(out, aside, settings)
        else:
            LanceWriter(aside, settings)
        # Renamed when it is whole: a crash before starts again from the file.
        os.replace(aside, store)
    writer = LanceWriter(store, settings)
    writer.changed = unfinished
    return writer


def finish_store(writer: LanceWriter, out: Path) -> None:
    """Finish a table, and write the export that was asked for; a file whose rows are unchanged stays as it is."""
    if out.suffix == ".lance":
        writer.finish()
        return
    if writer.changed:
        aside = out.with_name(f".{out.name}.writing")
        try:
            (_write_npz if out.suffix == ".npz" else _write_parquet)(aside, writer)
            os.replace(aside, out)
        finally:
            aside.unlink(missing_ok=True)
    # Renamed first: a crash must not leave half a table where the next run looks for a whole one.
    os.replace(writer.path, writer.path.with_name(ASIDE))
    shutil.rmtree(writer.path.parent, ignore_errors=True)


def copy_to_lance(source: Path, out: Path, settings: VectorSettings | None = None) -> None:
    """Copy a .parquet or .npz file into a new Lance table; columns that an older version did not write are empty.

    The arrays of an .npz file are in memory as a whole, as NumPy reads them.
    """
    found = read_settings(source)
    chosen = settings or found
    chosen.check_same(found, source)
    writer = LanceWriter(out, chosen)
    for piece in _pieces(source, chosen.schema()):
        writer.add(piece)


def read_settings(path: Path) -> VectorSettings:
    """Read which model made a .parquet or .npz file."""
    with _reading(path):
        if path.suffix == ".parquet":
            return VectorSettings.of(pq.read_schema(path), path)
        with np.load(path, allow_pickle=False) as arrays:
            return VectorSettings(**json.loads(str(arrays["settings"])))


def _pieces(path: Path, schema: pa.Schema) -> Iterator[pa.Table]:
    """Yield the rows of a file, some thousands at a time."""

    def completed(rows: pa.Table) -> pa.Table:
        known = [name for name in rows.column_names if name in COLUMNS]
        return pa.concat_tables([schema.empty_table(), rows.select(known)], promote_options="permissive").cast(schema)

    with _reading(path):
        if path.suffix == ".parquet":
            with pq.ParquetFile(path) as file:
                yield from (completed(pa.Table.from_batches([batch])) for batch in file.iter_batches(GROUP))
            return
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in COLUMNS if name in file}
        vectors = vectors_column(arrays.pop("vector"))
        columns = {name: pa.array(values, mask=values == UNKNOWN[name]) for name, values in arrays.items()}
        yield completed(pa.table({**columns, "vector": vectors}))


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except (ValueError, KeyError, TypeError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} is damaged, or not a file of gspool embed ({error}); write it again") from error


def _write_parquet(path: Path, writer: LanceWriter) -> None:
    schema = writer.settings.schema()
    with pq.ParquetWriter(path, schema) as file:
        for piece in writer.read():
            file.write_table(piece.cast(schema), row_group_size=GROUP)


def _write_npz(path: Path, writer: LanceWriter) -> None:
    """Write one array per column, in memory as a whole, as NumPy reads them too. A missing text is empty, else -1."""
    rows = pa.concat_tables([writer.settings.schema().empty_table().select(COLUMNS), *writer.read()]).sort_by("row")
    arrays: dict[str, Any] = {name: np.array(rows[name].fill_null(UNKNOWN[name]).to_pylist(), str) for name in TEXTS}
    arrays |= {name: rows[name].fill_null(-1).to_numpy() for name in COLUMNS if name not in ("vector", *TEXTS)}
    with path.open("wb") as file:
        np.savez(file, **arrays, vector=vectors_of(rows), settings=np.array(json.dumps(writer.settings._asdict())))
