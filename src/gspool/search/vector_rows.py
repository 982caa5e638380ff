"""What a file of vectors holds: a row an image, and the model that made them."""

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
# What tells whether a picture is still the one that was embedded.
REMEMBERED = ("row", "path", "label", "size", "modified", "source")
# The key under which a schema carries the settings; Arrow's metadata is bytes.
KEY = b"gspool"


class VectorSettings(NamedTuple):
    """What decides the numbers of a vector: the model, told by name and by fingerprint, and the precision."""

    model: str
    fingerprint: str
    dim: int
    precision: str = "float32"

    def schema(self) -> pa.Schema:
        """Give the columns of a table of such vectors; the settings travel in its metadata."""
        return pa.schema(
            [
                pa.field("row", pa.int64(), nullable=False),
                pa.field("path", pa.string(), nullable=False),
                pa.field("label", pa.string()),
                pa.field("width", pa.int32()),
                pa.field("height", pa.int32()),
                pa.field("vector", pa.list_(pa.float32(), self.dim), nullable=False),
                # Files of earlier versions have none of these.
                pa.field("size", pa.int64()),
                pa.field("modified", pa.int64()),
                pa.field("source", pa.string()),
            ],
            metadata={KEY: json.dumps({**self._asdict(), "gspool": __version__}).encode()},
        )

    def check_same(self, other: VectorSettings, path: Path) -> None:
        """Refuse to put vectors into a file of others.

        Raises:
            ValueError: if anything but the name of the model differs.
        """
        names = [name for name in ("fingerprint", "dim", "precision") if getattr(self, name) != getattr(other, name)]
        if names:
            told = ", ".join(f"{name} {getattr(other, name)} there, {getattr(self, name)} here" for name in names)
            raise ValueError(
                f"{path} holds vectors of {other.model!r} that do not compare with those of {self.model!r} ({told}); "
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
    """Where a vector came from: the file's size in bytes, its time of change in nanoseconds, the source that named it.

    ``row`` is the row that it takes the place of, None for a new one.
    """

    size: int | None = None
    modified: int | None = None
    source: str | None = None
    row: int | None = None


class VectorRows(NamedTuple):
    """Some images in a row: where they are, what they show if that is known, their sizes and their vectors."""

    paths: Sequence[str]
    labels: Sequence[str | None]
    widths: Sequence[int]
    heights: Sequence[int]
    vectors: Float[np.ndarray, "N D"]
    origins: Sequence[Origin] | None = None

    @property
    def replacing(self) -> int:
        """Count the rows that take the place of others."""
        return sum(origin.row is not None for origin in self.origins or ())

    def table(self, settings: VectorSettings, first_row: int) -> pa.Table:
        """Give the rows as an Arrow table, new ones numbered from ``first_row``.

        Raises:
            ValueError: if the vectors are not of the length that the settings say, or not finite.

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
            raise ValueError(
                f"the model gives a vector that is not finite for {self.paths[row]}; if this is half precision, "
                "use precision float32"
            )
        origins = self.origins or [Origin()] * len(self.paths)
        numbers = itertools.count(first_row)
        return pa.table(
            [
                pa.array([next(numbers) if each.row is None else each.row for each in origins], pa.int64()),
                pa.array(self.paths, pa.string()),
                pa.array(self.labels, pa.string()),
                pa.array(self.widths, pa.int32()),
                pa.array(self.heights, pa.int32()),
                pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), settings.dim),
                pa.array([each.size for each in origins], pa.int64()),
                pa.array([each.modified for each in origins], pa.int64()),
                pa.array([each.source for each in origins], pa.string()),
            ],
            schema=settings.schema(),
        )
