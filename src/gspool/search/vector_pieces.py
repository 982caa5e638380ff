"""The rows of a .parquet or .npz file of vectors, a few thousand at a time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from gspool.search import npz_stream
from gspool.search.vector_rows import COLUMNS, VectorSettings, settings_of

# What a row group of Parquet holds, and so what is in memory when one is read.
GROUP = 4096


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


def read_pieces(path: Path, columns: tuple[str, ...] = COLUMNS) -> Iterator[pa.Table]:
    """Give the rows of a file, a few thousand at a time; columns that an earlier version did not write are empty."""
    schema = read_settings(path).schema()
    wanted = pa.schema([schema.field(name) for name in columns], schema.metadata)
    if path.suffix == ".npz":
        for piece in npz_stream.read_npz(path, columns):
            known = {name: _as_column(piece, name, schema.field(name)) for name in piece}
            yield _with_all(known, wanted)
        return
    with pq.ParquetFile(path) as file:
        there = [name for name in columns if name in file.schema_arrow.names]
        for batch in file.iter_batches(batch_size=GROUP, columns=there):
            yield _with_all({name: batch[name] for name in there}, wanted)


def _with_all(known: dict[str, pa.Array], schema: pa.Schema) -> pa.Table:
    rows = len(next(iter(known.values())))
    return pa.table([known.get(field.name, pa.nulls(rows, field.type)) for field in schema], schema=schema)


def _as_column(piece: dict, name: str, field: pa.Field) -> pa.Array:
    if name == "vector":
        return pa.FixedSizeListArray.from_arrays(pa.array(piece[name].reshape(-1)), field.type.list_size)
    empty = "" if pa.types.is_string(field.type) else npz_stream.UNKNOWN
    return pa.array(
        [None if field.nullable and value == empty else value for value in piece[name].tolist()], field.type
    )
