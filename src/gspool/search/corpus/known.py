"""Compare what a table knows of its pictures with what the sources hold now."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pyarrow as pa

from gspool.search.corpus.sources import Source, list_images
from gspool.search.index.table import ImageRecord, LanceWriter, file_stamp
from gspool.terminal.bar import WorkBar

# A new picture has no place in the table, and one of an older version no size and no time.
UNKNOWN = -1
# What shows whether a picture is still the one that was embedded.
STATE = ("row", "label", "size", "modified", "source")
STATE_SCHEMA = pa.schema([*zip(STATE, (pa.int64(), pa.string(), pa.int64(), pa.int64(), pa.string()), strict=True)])
# Rows amended in one transaction: each transaction scans the whole table once.
AMENDED_AT_ONCE = 65_536


class KnownPictures:
    """The pictures of a table, by digests of 16 bytes however long their paths are, and their state when embedded.

    Attributes:
        skipped: pictures found unchanged so far.
        relabelled: pictures so far that have another label now and are unchanged otherwise.
    """

    def __init__(self, writer: LanceWriter, given: Sequence[str | Path]) -> None:
        self.writer, self.given, self.sources = writer, given, [Source(each) for each in given]
        self.skipped = self.relabelled = 0
        self._amended: list[tuple[Any, ...]] = []
        self._places: dict[bytes, int] = {}
        pieces, places = [STATE_SCHEMA.empty_table()], itertools.count()
        for piece in writer.read(["path", *STATE]):
            self._places.update(zip(map(_digest, piece["path"].to_pylist()), places, strict=False))
            pieces.append(piece.select(STATE).cast(STATE_SCHEMA))
        state = pa.concat_tables(pieces)
        self._rows = state["row"].to_numpy()
        self._sizes, self._times = (state[name].fill_null(UNKNOWN).to_numpy() for name in ("size", "modified"))
        # Many rows share one text.
        self._labels, self._sources = (state[name].combine_chunks().dictionary_encode() for name in ("label", "source"))
        self._listed = bytearray(len(state))

    def to_embed(self, bar: WorkBar) -> Iterator[ImageRecord]:
        """Yield the pictures of the sources that are new, or have changed since they were embedded."""
        for record in list_images(self.given, warn=False):
            digest = _digest(record.path)
            place = self._places.get(digest)
            if place is None:
                self._places[digest] = UNKNOWN
                size, modified = file_stamp(record.path) or (None, None)
                yield record._replace(size=size, modified=modified)
                continue
            repeated = place == UNKNOWN or bool(self._listed[place])
            changed = None if repeated else self._changed(place, record)
            if changed is not None:
                yield changed
            else:
                self.skipped += place == UNKNOWN or bool(self._listed[place])
                bar.advance()
        self._amend()

    def _changed(self, place: int, record: ImageRecord) -> ImageRecord | None:
        """Return what replaces a known picture; None if it is unchanged, with its label and state up to date."""
        # Before the picture is read: a change while it is read is then noticed the next time.
        stamp = file_stamp(record.path)
        if stamp is None:
            # A list names a file that does not exist: `gone` decides.
            return None
        self._listed[place] = True
        if stamp == (None, None):
            return None
        before = (int(self._sizes[place]), int(self._times[place]))
        row, known_label = int(self._rows[place]), self._labels[place].as_py()
        # A glob has no labels; that is no reason to forget one.
        label, source = record.label or known_label, self._sources[place].as_py() or record.source
        if before not in (stamp, (UNKNOWN, UNKNOWN)):
            return record._replace(label=label, size=stamp[0], modified=stamp[1], source=source, row=row)
        if label != known_label or before != stamp:
            self.relabelled += label != known_label
            self._amended.append((row, label, *stamp, source))
            if len(self._amended) == AMENDED_AT_ONCE:
                self._amend()
        return None

    def _amend(self) -> None:
        if self._amended:
            self.writer.amend(pa.table([*zip(*self._amended, strict=True)], STATE_SCHEMA))
            self._amended = []

    def gone(self) -> list[int]:
        """Return the rows of pictures that the sources no longer hold, after `to_embed` has gone through them.

        A picture from a list is gone when the list no longer names it. Any other is gone when its file is, if it came
        from one of these sources or lies below one of these folders. Without a known source it is enough that these
        sources look where it was.
        """
        if all(self._listed):
            return []
        names = {source.name for source in self.sources}
        lists = {source.name for source in self.sources if source.kind == "list"}
        folders = tuple({source.searched for source in self.sources if source.kind == "folder"})
        searched = tuple({source.searched for source in self.sources})

        def is_gone(path: str, source: str | None) -> bool:
            if source in lists:
                return True
            looked_for = path.startswith(searched) if source is None else source in names or path.startswith(folders)
            return looked_for and file_stamp(path) is None

        rows = []
        for piece in self.writer.read(["row", "path", "source"]):
            for row, path, source in zip(*(column.to_pylist() for column in piece.columns), strict=True):
                place = self._places[_digest(path)]
                if place != UNKNOWN and not self._listed[place] and is_gone(path, source):
                    rows.append(row)
        return rows


def _digest(path: str) -> bytes:
    return blake2b(os.fsencode(path), digest_size=16).digest()
