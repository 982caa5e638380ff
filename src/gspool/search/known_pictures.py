"""What a file of vectors knows of its pictures, held against what the sources hold now."""

from __future__ import annotations

import os
import sys
from array import array
from collections.abc import Iterator
from hashlib import blake2b
from typing import Any

import pyarrow as pa

from gspool.search.corpus_sources import CorpusSources, is_missing
from gspool.search.image_list import Listed
from gspool.search.vector_files import VectorWriter
from gspool.search.vector_rows import REMEMBERED, Origin
from gspool.terminal.bar import WorkBar

UNKNOWN = -1
# Rows whose notes are renewed in one transaction: each looks through the whole table once.
AMENDED_AT_ONCE = 65_536
AMENDED = pa.schema(
    {"row": pa.int64(), "label": pa.string(), "size": pa.int64(), "modified": pa.int64(), "source": pa.string()}
)


class KnownPictures:
    """The pictures of a file, by digests of 16 bytes however long their paths are, and how they were when embedded.

    Attributes:
        skipped: how many are there as they are now, so far.
        relabelled: how many have another label by now, so far; nothing else of them has changed.
        underway: where the pictures came from that `to_embed` gave and nobody has taken out yet, by their paths.
    """

    def __init__(self, writer: VectorWriter, sources: CorpusSources) -> None:
        self.writer, self.sources = writer, sources
        self.skipped = self.relabelled = 0
        self.underway: dict[str, Origin] = {}
        self._places: dict[bytes, int] = {}
        self._rows, self._sizes, self._times = array("q"), array("q"), array("q")
        self._labels: list[str | None] = []
        self._sources: list[str | None] = []
        self._amended: list[tuple[Any, ...]] = []
        for piece in writer.known():
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
        """Give the pictures of the sources that are new, or changed since they were embedded."""
        for listed, source in self.sources.pictures():
            digest = _digest(listed.path)
            place = self._places.get(digest)
            if place is None:
                self._places[digest] = UNKNOWN
                size, time = _stamp(listed.path)
                self.underway[listed.path] = Origin(size, time, source)
                yield listed
            elif place != UNKNOWN and not self._listed[place] and self._has_changed(place, listed, source):
                # A glob knows no labels; that is no reason to forget one.
                yield listed._replace(label=listed.label or self._labels[place])
            else:
                self.skipped += place == UNKNOWN or bool(self._listed[place])
                bar.advance()
        self._amend()

    def _has_changed(self, place: int, listed: Listed, source: str | None) -> bool:
        """Hold a picture that is there against its file, and keep up what is remembered of it."""
        # Before the picture is read: what changes while it is read is then noticed the next time.
        size, time = _stamp(listed.path)
        if size is None and is_missing(listed.path):
            # A list names what is not there: `gone` has the say.
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
        """Give the rows of pictures that the sources hold no more, after `to_embed` has gone through them."""
        if all(self._listed):
            return []
        rows = []
        for piece in self.writer.known():
            for row, path, _, _, _, source in zip(*_columns(piece), strict=True):
                place = self._places[_digest(path)]
                if place != UNKNOWN and not self._listed[place] and self.sources.hold_no_more(path, source):
                    rows.append(row)
        return rows


def _columns(piece: pa.Table) -> list[list[Any]]:
    return [piece[name].to_pylist() for name in REMEMBERED]


def _stamp(path: str) -> tuple[int, int] | tuple[None, None]:
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None, None
    return status.st_size, status.st_mtime_ns


def _digest(path: str) -> bytes:
    return blake2b(os.fsencode(path), digest_size=16).digest()
