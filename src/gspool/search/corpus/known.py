"""Compare what a table knows of its pictures with what the sources hold now."""

from __future__ import annotations

import os
import sys
from array import array
from collections.abc import Iterator
from hashlib import blake2b
from typing import Any

import pyarrow as pa

from gspool.search.corpus.sources import Listed, Sources, is_missing
from gspool.search.index.rows import STAMPS, Origin
from gspool.search.index.table import LanceWriter
from gspool.terminal.bar import WorkBar

UNKNOWN = -1
# Rows amended in one transaction: each transaction scans the whole table once.
AMENDED_AT_ONCE = 65_536
AMENDED = pa.schema(
    {"row": pa.int64(), "label": pa.string(), "size": pa.int64(), "modified": pa.int64(), "source": pa.string()}
)


class KnownPictures:
    """The pictures of a table, by digests of 16 bytes however long their paths are, and their state when embedded.

    Attributes:
        skipped: pictures found unchanged so far.
        relabelled: pictures so far that have another label now and are unchanged otherwise.
        underway: the origins of pictures that `to_embed` yielded and are not stored yet, by path.
    """

    def __init__(self, writer: LanceWriter, sources: Sources) -> None:
        self.writer, self.sources = writer, sources
        self.skipped = self.relabelled = 0
        self.underway: dict[str, Origin] = {}
        self._places: dict[bytes, int] = {}
        self._rows, self._sizes, self._times = array("q"), array("q"), array("q")
        self._labels: list[str | None] = []
        self._sources: list[str | None] = []
        self._amended: list[tuple[Any, ...]] = []
        for piece in writer.stamps():
            for row, path, label, size, time, source in zip(*_columns(piece), strict=True):
                self._places[_digest(path)] = len(self._rows)
                self._rows.append(row)
                self._sizes.append(UNKNOWN if size is None else size)
                self._times.append(UNKNOWN if time is None else time)
                # Many rows share one text.
                self._labels.append(label and sys.intern(label))
                self._sources.append(source and sys.intern(source))
        self._listed = bytearray(len(self._rows))

    def to_embed(self, bar: WorkBar) -> Iterator[Listed]:
        """Yield the pictures of the sources that are new, or have changed since they were embedded."""
        for listed, source in self.sources.pictures():
            digest = _digest(listed.path)
            place = self._places.get(digest)
            if place is None:
                self._places[digest] = UNKNOWN
                size, time = _stamp(listed.path)
                self.underway[listed.path] = Origin(size, time, source)
                yield listed
            elif place != UNKNOWN and not self._listed[place] and self._has_changed(place, listed, source):
                # A glob has no labels; that is no reason to forget one.
                yield listed._replace(label=listed.label or self._labels[place])
            else:
                self.skipped += place == UNKNOWN or bool(self._listed[place])
                bar.advance()
        self._amend()

    def _has_changed(self, place: int, listed: Listed, source: str | None) -> bool:
        """Compare a known picture with its file, and keep its label and stamps up to date."""
        # Before the picture is read: a change while it is read is then noticed the next time.
        size, time = _stamp(listed.path)
        if size is None and is_missing(listed.path):
            # A list names a file that does not exist: `gone` decides.
            return False
        self._listed[place] = True
        known = self._sizes[place], self._times[place]
        source = self._sources[place] or source
        if size is not None and known not in ((size, time), (UNKNOWN, UNKNOWN)):
            self.underway[listed.path] = Origin(size, time, source, self._rows[place])
            return True
        label = listed.label or self._labels[place]
        if size is not None and (label != self._labels[place] or known == (UNKNOWN, UNKNOWN)):
            self.relabelled += label != self._labels[place]
            self._amended.append((self._rows[place], label, size, time, source))
            if len(self._amended) == AMENDED_AT_ONCE:
                self._amend()
        return False

    def _amend(self) -> None:
        if self._amended:
            self.writer.amend(pa.table([*zip(*self._amended, strict=True)], AMENDED))
            self._amended = []

    def gone(self) -> list[int]:
        """Return the rows of pictures that the sources no longer hold, after `to_embed` has gone through them."""
        if all(self._listed):
            return []
        rows = []
        for piece in self.writer.stamps():
            for row, path, _, _, _, source in zip(*_columns(piece), strict=True):
                place = self._places[_digest(path)]
                if place != UNKNOWN and not self._listed[place] and self.sources.have_lost(path, source):
                    rows.append(row)
        return rows


def _columns(piece: pa.Table) -> list[list[Any]]:
    return [piece[name].to_pylist() for name in STAMPS]


def _stamp(path: str) -> tuple[int, int] | tuple[None, None]:
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None, None
    return status.st_size, status.st_mtime_ns


def _digest(path: str) -> bytes:
    return blake2b(os.fsencode(path), digest_size=16).digest()
