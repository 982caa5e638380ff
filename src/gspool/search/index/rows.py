"""The columns of a table of vectors: one row per image, and the model that made the vectors."""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from gspool.version import __version__

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from jaxtyping import Float

COLUMNS = ("row", "path", "label", "width", "height", "vector", "size", "modified", "source")
# What shows whether a picture is still the one that was embedded.
STAMPS = ("row", "path", "label", "size", "modified", "source")
# The metadata key of the settings in a schema; Arrow's metadata is bytes.
KEY = b"gspool"


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
                # Older files lack these.
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


class Origin(NamedTuple):
    """Where a vector came from: the file's size in bytes, its modification time in nanoseconds, and its source.

    ``row`` is the row that it replaces, None for a new one.
    """

    size: int | None = None
    modified: int | None = None
    source: str | None = None
    row: int | None = None


class VectorRows(NamedTuple):
    """Some images: paths, labels where known, sizes and vectors."""

    paths: Sequence[str]
    labels: Sequence[str | None]
    widths: Sequence[int]
    heights: Sequence[int]
    vectors: Float[np.ndarray, "N D"]
    origins: Sequence[Origin] | None = None

    @property
    def replacing(self) -> int:
        """Count the rows that replace others."""
        return sum(origin.row is not None for origin in self.origins or ())

    def table(self, settings: VectorSettings, first_row: int) -> pa.Table:
        """Return the rows as an Arrow table, new ones numbered from ``first_row``.

        Raises:
            ValueError: if the vectors have another length than the settings say, or are not finite.

        Example:
            >>> rows = VectorRows(["a.jpg"], ["ant"], [4], [3], np.ones((1, 2), dtype=np.float32))
            >>> rows.table(VectorSettings("model", "0f", 2), first_row=7).select(["row", "label", "vector"]).to_pylist()
            [{'row': 7, 'label': 'ant', 'vector': [1.0, 1.0]}]
        """
        vectors = np.ascontiguousarray(self.vectors, dtype=np.float32)
        if vectors.shape != (len(self.paths), settings.dim):
            raise ValueError(f"expected {len(self.paths)} vectors of length {settings.dim}, got shape {vectors.shape}")
        if not np.isfinite(vectors).all():
            row = int(np.flatnonzero(~np.isfinite(vectors).all(axis=1))[0])
            raise ValueError(f"the vector of {self.paths[row]} is not finite; in half precision, try precision float32")
        origins = self.origins or [Origin()] * len(self.paths)
        numbers = itertools.count(first_row)
        rows = [next(numbers) if each.row is None else each.row for each in origins]
        columns: list[Any] = [rows, self.paths, self.labels, self.widths, self.heights, vectors_column(vectors)]
        columns += [[getattr(each, name) for each in origins] for name in ("size", "modified", "source")]
        return pa.table(columns, schema=settings.schema())


def vectors_column(vectors: Float[np.ndarray, "N D"]) -> pa.FixedSizeListArray:
    """Return vectors as a column of a table."""
    return pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), vectors.shape[1])
