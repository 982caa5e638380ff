"""The files of the decoded cache: sparse pixels with an index, and their removal when a folder is full.

A list of images that changes by a single file is another list with its own cache. Without removal, a folder of images
that grows every day would leave a copy of itself on the disk every day.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import time
import warnings
import weakref
import zlib
from collections import defaultdict
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

SIZES, PIXELS, INDEX, TEMPORARY = ".sizes.npy", ".pixels", ".index", ".part"
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_OURS = re.compile(rf"[0-9a-f]{{32}}(?=({'|'.join(map(re.escape, (SIZES, PIXELS, INDEX)))})$)")
_LEFT_OVER = re.compile(rf"[0-9a-f]{{32}}\.[0-9a-f]{{32}}{re.escape(TEMPORARY)}$")
_HOUR = 3600
# Of an index entry, the upper half says that the image is there, the lower half is the CRC of its pixels.
_WRITTEN = 1 << 32


class CacheFiles:
    """Pixels and index of one list of images, open in this process.

    Any number of processes may read and write without a lock. The pixels of an image are written before its index
    entry: two processes that write one image write the same bytes, and one that is killed in between leaves no entry,
    or one whose checksum does not match. The files are sparse: what is not written yet takes no space.
    """

    def __init__(self, stem: Path, starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]) -> None:
        self.starts = starts
        self.lengths = lengths
        total = int(starts[-1] + lengths[-1])
        pixels, index = stem.with_suffix(PIXELS), stem.with_suffix(INDEX)
        self._pixels_file = self._open(pixels, max(total, 1))
        self._index_file = self._open(index, 8 * len(starts))
        _mark_used(self._index_file)
        self._pixels = np.memmap(pixels, dtype=np.uint8, mode="r")
        self._index = np.memmap(index, dtype=np.uint64, mode="r", shape=(len(starts),))
        self._is_full = False

    def _open(self, path: Path, length: int) -> int:
        """Open a file of at least this length."""
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        weakref.finalize(self, os.close, file)
        if os.fstat(file).st_size < length:
            os.ftruncate(file, length)
        return file

    def read(self, row: int) -> npt.NDArray[np.uint8] | None:
        """Return the pixels of an image, or None if they are missing or damaged."""
        entry = int(self._index[row])
        if not entry & _WRITTEN:
            return None
        start = int(self.starts[row])
        pixels = np.array(self._pixels[start : start + int(self.lengths[row])])
        return pixels if zlib.crc32(pixels.data) == entry & 0xFFFFFFFF else None

    def write(self, row: int, pixels: npt.NDArray[np.uint8]) -> None:
        """Store the pixels of an image; on a full disk warn once and store nothing more."""
        if self._is_full:
            return
        entry = np.uint64(_WRITTEN | zlib.crc32(pixels.data))
        try:
            write_at(self._pixels_file, pixels.data.cast("B"), int(self.starts[row]))
            write_at(self._index_file, memoryview(entry.tobytes()), 8 * row)
        except OSError as problem:
            if problem.errno not in NO_ROOM:
                raise
            # A full disk costs speed, not the run.
            self._is_full = True
            warnings.warn(
                f"the cache of decoded images cannot grow ({problem}); images that are not in it will be decoded each "
                "time. Free some space, choose another folder, or lower max_bytes",
                stacklevel=4,
            )

    def count(self) -> int:
        """Count the images that are stored."""
        return int(((self._index & np.uint64(_WRITTEN)) > 0).sum())


def write_at(file: int, content: memoryview, start: int) -> None:
    """Write all of the content at an offset, without moving the position that other users of the file see."""
    while len(content):
        done = os.pwrite(file, content, start)
        content, start = content[done:], start + done


def _mark_used(index: int) -> None:
    """Set the time of an open index, and lock it, so that its cache is not removed while this process has it open."""
    # In a shared folder times may not be ours to set, and some file systems have no locks: the cache works without.
    with suppress(OSError):
        os.utime(index)
    with suppress(OSError):
        _lock(index, "LOCK_SH")


def _lock(file: int, kind: Literal["LOCK_SH", "LOCK_EX"]) -> None:
    """Lock a file without waiting; on Windows a file that a process has open cannot be removed anyway."""
    with suppress(ImportError):
        import fcntl

        fcntl.flock(file, getattr(fcntl, kind) | fcntl.LOCK_NB)


class StoredCache(NamedTuple):
    """The cache of one list: its files, the disk space that they take, and when it was last used."""

    files: tuple[Path, ...]
    space: int
    used: float


def make_room(stem: Path, needed: int, bound: int) -> None:
    """Remove caches beside ``stem``, least recently used first, until its ``needed`` bytes fit the bound and the disk.

    Caches that a process has open stay. A process that is about to open a removed cache decodes again and loses nothing
    else. Temporary files that a killed process left behind are removed too.
    """
    caches = sorted(_other_caches(stem), key=lambda cache: cache.used)
    space = sum(cache.space for cache in caches)
    for cache in caches:
        if space + needed <= bound and needed <= shutil.disk_usage(stem.parent).free:
            return
        if _remove(cache):
            space -= cache.space


def _other_caches(stem: Path) -> list[StoredCache]:
    groups: dict[str, list[tuple[Path, os.stat_result]]] = defaultdict(list)
    for entry in os.scandir(stem.parent):
        with suppress(OSError):  # another process may be removing files as well
            ours = _OURS.match(entry.name)
            if ours and ours.group() != stem.name:
                groups[ours.group()].append((Path(entry.path), entry.stat()))
            elif _LEFT_OVER.match(entry.name) and time.time() - entry.stat().st_mtime > _HOUR:
                os.unlink(entry.path)
    return [
        StoredCache(
            tuple(path for path, _ in files),
            sum(512 * state.st_blocks for _, state in files),  # the files are sparse: their length is not their size
            max(state.st_mtime for _, state in files),
        )
        for files in groups.values()
    ]


def _remove(cache: StoredCache) -> bool:
    """Remove a cache unless it is in use, or not ours to remove."""
    with ExitStack() as opened, suppress(OSError):
        for file in cache.files:
            if file.suffix == INDEX:
                _lock(opened.enter_context(file.open("r+b")).fileno(), "LOCK_EX")
        for file in cache.files:
            file.unlink(missing_ok=True)
        return True
    return False
