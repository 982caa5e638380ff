"""The files of a decoded cache: pixels at places fixed from the start, and an index that says what is there."""

from __future__ import annotations

import errno
import os
import warnings
import weakref
import zlib
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gspool.data.cache_room import INDEX, PIXELS, mark_used

# Of an index entry, the upper half says that the image is there, the lower half is the CRC of its pixels.
_WRITTEN = 1 << 32
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class CacheFiles:
    """Pixels and index of one list of images, open in this process.

    Any number of processes may read and write without a lock. An image is written first, its index entry after: two
    that write one image write the same bytes, and one that is killed in between leaves no entry, or one whose checksum
    does not fit. What is not written yet reads as zeros and takes no room: the files are sparse.
    """

    def __init__(self, stem: Path, starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]) -> None:
        self.starts = starts
        self.lengths = lengths
        total = int(starts[-1] + lengths[-1])
        pixels, index = stem.with_suffix(PIXELS), stem.with_suffix(INDEX)
        self._pixels_file = self._open(pixels, max(total, 1))
        self._index_file = self._open(index, 8 * len(starts))
        mark_used(self._index_file)
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
        """Give the pixels of an image, or None if they are not there or not whole."""
        entry = int(self._index[row])
        if not entry & _WRITTEN:
            return None
        start = int(self.starts[row])
        pixels = np.array(self._pixels[start : start + int(self.lengths[row])])
        return pixels if zlib.crc32(pixels.data) == entry & 0xFFFFFFFF else None

    def write(self, row: int, pixels: npt.NDArray[np.uint8]) -> None:
        """Keep the pixels of an image; on a full disk tell so once and keep nothing more.

        Warns:
            UserWarning: if there is no room left.
        """
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
        """Count the images that are there."""
        return int(((self._index & np.uint64(_WRITTEN)) > 0).sum())


def write_at(file: int, content: memoryview, start: int) -> None:
    """Write all of the content at a place, without moving the position that other users of the file see."""
    while len(content):
        done = os.pwrite(file, content, start)
        content, start = content[done:], start + done
