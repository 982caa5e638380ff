"""The rows of a table of vectors: one per image, and the model that made the vectors."""

from __future__ import annotations

import itertools
import json
import os
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from gspool.version import __version__

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from jaxtyping import Float, Float32

COLUMNS = ("row", "path", "label", "width", "height", "vector", "size", "modified", "source")
# The metadata key of the settings in a schema; Arrow's metadata is bytes.
KEY = b"gspool"


class ImageRecord(NamedTuple):
    """One image on its way from a source to the table, which stores it beside its vector; None is not known (yet).

    ``size`` in bytes and ``modified`` in nanoseconds are those of the file when it was listed, ``source`` is the
    folder, glob or list that it came from, and ``row`` is the row that it replaces.
    """

    path: str
    label: str | None = None
    width: int | None = None
    height: int | None = None
    size: int | None = None
    modified: int | None = None
    source: str | None = None
    row: int | None = None


class VectorSettings(NamedTuple):
    """What decides the numbers of a vector: the model, by name and fingerprint, and the precision."""

    model: str
    fingerprint: str
    dim: int
    precision: str = "float32"

    def schema(self) -> pa.Schema:
        """Return the columns of a table of such vectors, with the settings in its metadata."""
        return pa.schema(
            [
                pa.field("row", pa.int64(), nullable=False),
                pa.field("path", pa.string(), nullable=False),
                pa.field("label", pa.string()),
                pa.field("width", pa.int32()),
                pa.field("height", pa.int32()),
                pa.field("vector", pa.list_(pa.float32(), self.dim), nullable=False),
                # Files of version 0.1 lack these.
                pa.field("size", pa.int64()),
                pa.field("modified", pa.int64()),
                pa.field("source", pa.string()),
            ],
            metadata={KEY: json.dumps({**self._asdict(), "gspool": __version__}).encode()},
        )

    def check_same(self, other: VectorSettings, path: Path) -> None:
        """Refuse to mix vectors that do not compare.

        Raises:
            ValueError: if anything but the name of the model differs.
        """
        names = [name for name in ("fingerprint", "dim", "precision") if getattr(self, name) != getattr(other, name)]
        if names:
            found = ", ".join(f"{name} {getattr(other, name)} there, {getattr(self, name)} here" for name in names)
            raise ValueError(
                f"{path} holds vectors of {other.model!r} that do not compare with those of {self.model!r} ({found}); "
                "write to another file, or delete this one"
            )


def settings_of(schema: pa.Schema, path: Path) -> VectorSettings:
    """Read the settings from the metadata of a schema.

    Raises:
        ValueError: if the file was not written by gspool.
    """
    try:
        content: dict[str, Any] = json.loads((schema.metadata or {})[KEY])
        return VectorSettings(**{name: content[name] for name in VectorSettings._fields})
    except (KeyError, ValueError, TypeError) as error:
        raise ValueError(
            f"{path} does not say which model made it; give a file that gspool embed wrote (its columns: "
            f"{', '.join(schema.names)})"
        ) from error


def as_table(
    records: Sequence[ImageRecord], vectors: Float[np.ndarray, "N D"], settings: VectorSettings, first_row: int
) -> pa.Table:
    """Return images and their vectors as rows, new ones numbered from ``first_row``.

    Raises:
        ValueError: if the vectors have another length than the settings say, or are not finite.

    Example:
        >>> rows = as_table([ImageRecord("a.jpg", "ant")], np.ones((1, 2)), VectorSettings("model", "0f", 2), 7)
        >>> rows.select(["row", "label", "vector"]).to_pylist()
        [{'row': 7, 'label': 'ant', 'vector': [1.0, 1.0]}]
    """
    if vectors.shape != (len(records), settings.dim):
        raise ValueError(f"expected {len(records)} vectors of length {settings.dim}, got shape {vectors.shape}")
    bad = np.flatnonzero(~np.isfinite(vectors).all(axis=1))
    if len(bad):
        raise ValueError(f"the vector of {records[bad[0]].path} is not finite; in half precision, try float32")
    numbers = itertools.count(first_row)
    columns: dict[str, Any] = dict(zip(ImageRecord._fields, zip(*records, strict=True), strict=True))
    columns["row"] = [next(numbers) if row is None else row for row in columns["row"]]
    columns["vector"] = vectors_column(vectors)
    return pa.table([columns[name] for name in COLUMNS], schema=settings.schema())


def vectors_column(vectors: Float[np.ndarray, "N D"]) -> pa.FixedSizeListArray:
    """Return vectors as a column of a table."""
    return pa.FixedSizeListArray.from_arrays(pa.array(vectors.astype(np.float32).reshape(-1)), vectors.shape[1])


def vectors_of(rows: pa.Table) -> Float32[np.ndarray, "N D"]:
    """Return the column of vectors of some rows."""
    column = rows["vector"].combine_chunks()
    return np.asarray(column.flatten(), dtype=np.float32).reshape(len(column), column.type.list_size)


def file_stamp(path: str) -> tuple[int, int] | tuple[None, None]:
    """Return size and modification time of a file, by which a change is noticed; None where it cannot be read."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None, None
    return status.st_size, status.st_mtime_ns


def is_text(path: str) -> bool:
    """Return whether a path is UTF-8, as all text of a table; names on disk may be any bytes."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True
