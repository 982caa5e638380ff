"""Compare what a table knows of its pictures with what the sources hold now."""

from __future__ import annotations

import os
import sys
from array import array
from collections.abc import Iterator
from hashlib import blake2b
from typing import Any

import pyarrow as pa

from gspool.search.corpus.sources import Sources, is_missing
from gspool.search.index.rows import ImageRecord, file_stamp
from gspool.search.index.table import LanceWriter
from gspool.terminal.bar import WorkBar

UNKNOWN = -1
# What shows whether a picture is still the one that was embedded.
STAMPS = ("row", "path", "label", "size", "modified", "source")
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
    """

    def __init__(self, writer: LanceWriter, sources: Sources) -> None:
        self.writer, self.sources = writer, sources
        self.skipped = self.relabelled = 0
        self._places: dict[bytes, int] = {}
        self._rows, self._sizes, self._times = array("q"), array("q"), array("q")
        self._labels: list[str | None] = []
        self._sources: list[str | None] = []
        self._amended: list[tuple[Any, ...]] = []
        for row, path, label, size, time, source in self._stamps():
            self._places[_digest(path)] = len(self._rows)
            self._rows.append(row)
            self._sizes.append(UNKNOWN if size is None else size)
            self._times.append(UNKNOWN if time is None else time)
            # Many rows share one text.
            self._labels.append(label and sys.intern(label))
            self._sources.append(source and sys.intern(source))
        self._listed = bytearray(len(self._rows))

    def _stamps(self) -> Iterator[tuple[Any, ...]]:
        for piece in self.writer.read(STAMPS):
            yield from zip(*(piece[name].to_pylist() for name in STAMPS), strict=True)

    def to_embed(self, bar: WorkBar) -> Iterator[ImageRecord]:
        """Yield the pictures of the sources that are new, or have changed since they were embedded."""
        for record in self.sources:
            digest = _digest(record.path)
            place = self._places.get(digest)
            if place is None:
                self._places[digest] = UNKNOWN
                size, time = file_stamp(record.path)
                yield record._replace(size=size, modified=time)
                continue
            changed = None
            if place != UNKNOWN and not self._listed[place]:
                changed = self._changed(place, record)
            if changed is not None:
                yield changed
            else:
                self.skipped += place == UNKNOWN or bool(self._listed[place])
                bar.advance()
        self._amend()

    def _changed(self, place: int, record: ImageRecord) -> ImageRecord | None:
        """Return what replaces a known picture; None if it is unchanged, with its label and stamps up to date."""
        # Before the picture is read: a change while it is read is then noticed the next time.
        size, time = file_stamp(record.path)
        if size is None and is_missing(record.path):
            # A list names a file that does not exist: `gone` decides.
            return None
        self._listed[place] = True
        row, known = self._rows[place], (self._sizes[place], self._times[place])
        # A glob has no labels; that is no reason to forget one.
        label, source = record.label or self._labels[place], self._sources[place] or record.source
        if size is not None and known not in ((size, time), (UNKNOWN, UNKNOWN)):
            return record._replace(label=label, size=size, modified=time, source=source, row=row)
        if size is not None and (label != self._labels[place] or known == (UNKNOWN, UNKNOWN)):
            self.relabelled += label != self._labels[place]
            self._amended.append((row, label, size, time, source))
            if len(self._amended) == AMENDED_AT_ONCE:
                self._amend()
        return None

    def _amend(self) -> None:
        if self._amended:
            self.writer.amend(pa.table([*zip(*self._amended, strict=True)], AMENDED))
            self._amended = []

    def gone(self) -> list[int]:
        """Return the rows of pictures that the sources no longer hold, after `to_embed` has gone through them."""
        if all(self._listed):
            return []
        rows = []
        for row, path, _, _, _, source in self._stamps():
            place = self._places[_digest(path)]
            if place != UNKNOWN and not self._listed[place] and self.sources.have_lost(path, source):
                rows.append(row)
        return rows


def _digest(path: str) -> bytes:
    return blake2b(os.fsencode(path), digest_size=16).digest()
