"""The store of vectors: a Lance table with one row per image, where every write is a transaction.

A crash leaves whole rows. The metadata of the table says which model made the vectors.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import lancedb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gspool.files import lock
from gspool.terminal.status import in_words
from gspool.version import __version__

if TYPE_CHECKING:
    from jaxtyping import Float, Float32

COLUMNS = ("row", "path", "label", "width", "height", "vector", "size", "modified", "source")
# The metadata key of the settings in a schema; Arrow's metadata is bytes.
KEY = b"gspool"
# Older versions are only the steps of the last run; a millisecond is the least that LanceDB accepts quietly.
FORGET_AFTER = timedelta(milliseconds=1)
# Rows that one delete condition names.
REMOVED_AT_ONCE = 4096
Result = TypeVar("Result")


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

    @classmethod
    def of(cls, schema: pa.Schema, path: Path) -> VectorSettings:
        """Read the settings from the metadata of a schema, which gspool must have written."""
        try:
            content: dict[str, Any] = json.loads((schema.metadata or {})[KEY])
            return cls(**{name: content[name] for name in cls._fields})
        except (KeyError, ValueError, TypeError) as error:
            raise ValueError(
                f"{path} does not say which model made it; give a file that gspool embed wrote (its columns: "
                f"{', '.join(schema.names)})"
            ) from error

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
        """Refuse to mix vectors that do not compare: those where anything but the name of the model differs."""
        names = [name for name in ("fingerprint", "dim", "precision") if getattr(self, name) != getattr(other, name)]
        if names:
            found = ", ".join(f"{name} {getattr(other, name)} there, {getattr(self, name)} here" for name in names)
            raise ValueError(
                f"{path} holds vectors of {other.model!r} that do not compare with those of {self.model!r} ({found}); "
                "write to another file, or delete this one"
            )


def vectors_column(vectors: Float[np.ndarray, "N D"]) -> pa.FixedSizeListArray:
    """Return vectors as a column of a table."""
    return pa.FixedSizeListArray.from_arrays(pa.array(vectors.astype(np.float32).reshape(-1)), vectors.shape[1])


def vectors_of(rows: pa.Table) -> Float32[np.ndarray, "N D"]:
    """Return the column of vectors of some rows."""
    column = rows["vector"].combine_chunks()
    return np.asarray(column.flatten(), dtype=np.float32).reshape(len(column), column.type.list_size)


def file_stamp(path: str) -> tuple[int, int] | tuple[None, None] | None:
    """Return size and modification time of a file, by which a change is noticed.

    None is a file that does not exist; (None, None) one that cannot be reached, on a failing disk for example.
    """
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError):
        return None, None
    return status.st_size, status.st_mtime_ns


def open_table(path: Path) -> Any:
    """Open a Lance table by its folder ``NAME.lance``; every read sees its newest version.

    Another process may write to a table that is open; it deletes the files of older versions when it is done.
    """
    try:
        return lancedb.connect(path.absolute().parent, read_consistency_interval=timedelta(0)).open_table(path.stem)
    except (ValueError, RuntimeError, OSError) as error:
        raise ValueError(f"{path} is not a Lance table ({error}); write one with gspool embed") from error


def is_missing(path: Path) -> bool:
    """Return whether nothing is at this path, or an empty folder, in which a Lance table can be created."""
    return not path.exists() or (path.is_dir() and not any(path.iterdir()))


def newest(read: Callable[[], Result]) -> Result:
    """Return what is read from a table that another process may write to."""
    try:
        return read()
    except RuntimeError as error:
        if "Not found" not in str(error):
            raise
        # The other process has just deleted the version that this began with; a second read begins with the newest.
        return read()


def write_lock(path: Path) -> AbstractContextManager[None]:
    """Return the lock of a file of vectors, which a process holds while it writes to it."""
    message = f"another process is writing to {path}; wait for it, or write to another file"
    return lock(path.with_name(f".{path.name}.lock"), message)


def reason_of(error: Exception) -> str:
    """Return why Lance could not write, in a few words."""
    if "No space left" in str(error):
        return "no space left on the disk"
    return (in_words(error) or type(error).__name__).splitlines()[0]


class LanceWriter:
    """Append rows to a table, and replace and remove rows; the table is created if it does not exist.

    A table of version 0.1 gets the columns that it lacks, in one transaction, without values.

    Attributes:
        changed: whether anything was written since the table was opened.

    Raises:
        ValueError: if the table holds vectors of other settings, or cannot be written.
    """

    def __init__(self, path: Path, settings: VectorSettings) -> None:
        self.path, self.settings, self.changed = path, settings, False
        schema = settings.schema()
        if not is_missing(path):
            self.table = open_table(path)
            settings.check_same(VectorSettings.of(self.table.schema, path), path)
            missing = [field for field in schema if field.name not in self.table.schema.names]
            if missing:
                with self._writing():
                    self.table.add_columns(missing)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            with self._writing():
                self.table = lancedb.connect(path.absolute().parent).create_table(path.stem, schema=schema)
        # Not the count: rows may have been removed, and a number belongs to one picture for good.
        self.next_row = 1 + max((pc.max(piece["row"]).as_py() for piece in self.read(["row"])), default=-1)

    @property
    def rows(self) -> int:
        """How many rows the table holds."""
        return int(self.table.count_rows())

    def read(self, columns: Sequence[str] = COLUMNS) -> Iterator[pa.Table]:
        """Yield the rows, some thousands at a time."""
        for batch in self.table.search().select([*columns]).to_batches():
            if batch.num_rows:
                yield pa.Table.from_batches([batch]).select([*columns])

    def append(self, records: Sequence[ImageRecord], vectors: Float[np.ndarray, "N D"]) -> None:
        """Add images, or replace the rows that they name, all of them or none; they survive a crash from here on."""
        if vectors.shape != (len(records), self.settings.dim):
            raise ValueError(f"expected {len(records)} vectors of length {self.settings.dim}, got {vectors.shape}")
        bad = np.flatnonzero(~np.isfinite(vectors).all(axis=1))
        if len(bad):
            raise ValueError(f"the vector of {records[bad[0]].path} is not finite; in half precision, try float32")
        numbers = itertools.count(self.next_row)
        columns: dict[str, Any] = dict(zip(ImageRecord._fields, zip(*records, strict=True), strict=True))
        columns["row"] = [next(numbers) if row is None else row for row in columns["row"]]
        columns["vector"] = vectors_column(vectors)
        rows = pa.table([columns[name] for name in COLUMNS], schema=self.settings.schema())
        self.next_row = next(numbers)
        if all(record.row is None for record in records):
            self.add(rows)
            return
        with self._writing():
            self.table.merge_insert("row").when_matched_update_all().when_not_matched_insert_all().execute(rows)

    def add(self, rows: pa.Table) -> None:
        """Add new rows, which have their numbers already."""
        with self._writing():
            self.table.add(rows)

    def amend(self, rows: pa.Table) -> None:
        """Replace some columns of rows, but not their vectors: a table with a column row and the others."""
        with self._writing():
            self.table.merge_insert("row").when_matched_update_all().execute(rows)

    def remove(self, rows: Sequence[int]) -> None:
        """Remove rows by number."""
        for first in range(0, len(rows), REMOVED_AT_ONCE):
            with self._writing():
                self.table.delete(f"row IN ({', '.join(map(str, rows[first : first + REMOVED_AT_ONCE]))})")

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
            raise ValueError(
                f"{self.path} could not be written ({reason_of(error)}); rows saved before are kept. Make room, or "
                "repair the disk, and run the same command again"
            ) from error
        self.changed = True
