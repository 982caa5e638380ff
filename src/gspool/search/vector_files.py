"""Files of vectors, .lance, .parquet or .npz: written piece by piece, whole after any crash, and gone on with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from gspool.files import lock
from gspool.search.lance_table import LanceWriter
from gspool.search.parts_writer import PartsWriter
from gspool.search.vector_pieces import read_pieces, read_settings
from gspool.search.vector_rows import VectorRows, VectorSettings

SUFFIXES = (".lance", ".parquet", ".npz")


class VectorWriter(Protocol):
    """Rows in, a file out."""

    rows: int

    def known(self) -> Iterator[pa.Table]:
        """Give what the rows remember of their pictures, some thousands at a time: the columns of `REMEMBERED`."""
        ...

    def append(self, rows: VectorRows) -> None:
        """Add rows and replace others, all of them or none; they survive a crash from here on."""
        ...

    def amend(self, rows: pa.Table) -> None:
        """Replace what rows remember, but for their vectors: a table with a column row and some of the others."""
        ...

    def remove(self, rows: Sequence[int]) -> None:
        """Take rows out, by their numbers."""
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
    taken = f"another process is writing to {path}; wait for it, or write to another file"
    with lock(path.with_name(f".{path.name}.lock"), taken):
        yield


def copy_to_lance(source: Path, out: Path) -> None:
    """Copy a .parquet or .npz file into a new Lance table, piece by piece.

    Raises:
        ValueError: if the source is damaged, or not written by gspool.
    """
    writer = LanceWriter(out, read_settings(source))
    for piece in read_pieces(source):
        writer.append_table(piece)
