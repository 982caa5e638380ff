"""Vectors as .parquet and .npz files for other programs: written from a Lance table, and read back into one."""

from __future__ import annotations

import json
import os
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gspool.search.index.rows import COLUMNS, VectorSettings, settings_of, vectors_column, vectors_of
from gspool.search.index.table import LanceWriter

SUFFIXES = (".lance", ".parquet", ".npz")
# Rows of a row group of Parquet, and in memory at a time.
GROUP = 4096
SETTINGS = "settings"
# The name of a working table that is not whole, while it is filled or deleted.
ASIDE = "aside.lance"
# NumPy arrays have no missing values.
TEXTS = ("path", "label", "source")
UNKNOWN: dict[str, Any] = {**dict.fromkeys(COLUMNS, -1), **dict.fromkeys(TEXTS, "")}


def open_store(out: Path, settings: VectorSettings) -> LanceWriter:
    """Open the table behind a file of vectors: a .lance file itself, or the working table of an export.

    The working table of ``FILE`` lies in ``FILE.parts`` until `finish_store` has written the file. A file that exists
    is read into it first.

    Raises:
        ValueError: if the ending is none of .lance, .parquet and .npz, or the file holds vectors of other settings.
    """
    if out.suffix not in SUFFIXES:
        raise ValueError(f"vectors are written to a {', '.join(SUFFIXES)} file, got {out}")
    if out.suffix == ".lance":
        return LanceWriter(out, settings)
    folder = out.with_name(f"{out.name}.parts")
    store, aside = folder / "vectors.lance", folder / ASIDE
    unfinished = store.exists() or not out.exists()
    if not store.exists():
        shutil.rmtree(aside, ignore_errors=True)
        if out.exists():
            settings.check_same(read_settings(out), out)
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
    """Copy a .parquet or .npz file into a new Lance table, with its own settings unless others are given.

    Raises:
        ValueError: if the source is damaged, or not written by gspool.
    """
    writer = LanceWriter(out, settings or read_settings(source))
    for piece in read_pieces(source):
        writer.add(piece)


def read_settings(path: Path) -> VectorSettings:
    """Read which model made a .parquet or .npz file.

    Raises:
        ValueError: if it is damaged, or not written by gspool.
    """
    try:
        if path.suffix == ".parquet":
            return settings_of(pq.read_schema(path), path)
        with np.load(path, allow_pickle=False) as arrays:
            return VectorSettings(**json.loads(str(arrays[SETTINGS])))
    except (pa.ArrowInvalid, KeyError, ValueError, TypeError, OSError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} does not hold vectors of gspool embed ({error})") from error


def read_pieces(path: Path) -> Iterator[pa.Table]:
    """Yield the rows of a file, some thousands at a time; columns that an older version did not write are empty.

    The arrays of an .npz file are in memory as a whole, as NumPy reads them.
    """
    schema = read_settings(path).schema()
    if path.suffix == ".parquet":
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=GROUP):
                yield _with_all({name: batch[name] for name in batch.schema.names if name in COLUMNS}, schema)
        return
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in COLUMNS if name in file}
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} is damaged ({error}); write it again") from error
    for first in range(0, len(arrays["row"]), GROUP):
        piece = {name: values[first : first + GROUP] for name, values in arrays.items()}
        yield _with_all({name: _as_column(name, values) for name, values in piece.items()}, schema)


def _as_column(name: str, values: np.ndarray) -> pa.Array:
    if name == "vector":
        return vectors_column(values)
    return pa.array(values, mask=values == UNKNOWN[name])


def _with_all(known: dict[str, Any], schema: pa.Schema) -> pa.Table:
    rows = len(known["row"])
    columns = [known.get(field.name, pa.nulls(rows, field.type)).cast(field.type) for field in schema]
    return pa.table(columns, schema=schema)


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
