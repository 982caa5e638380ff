"""A cache of decoded images on disk: each image is decoded once, stored in a file of its own, and then read from it."""

from __future__ import annotations

import copy
import errno
import hashlib
import os
import re
import time
import uuid
import warnings
import zlib
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import PIL
import torch

from gspool.data.decode import Interpolation, decode
from gspool.data.image_set import ImageSet
from gspool.data.image_source import FileImages, SelectedImages, selected
from gspool.data.registry import data_root

if TYPE_CHECKING:
    from jaxtyping import UInt8
    from torch import Tensor

GIGABYTE = 1 << 30
STORED, TEMPORARY = ".image", ".part"
# Version 0.1 kept the images of one list together, in files of the other endings.
_OURS = re.compile(r"[0-9a-f]{32}(\.image|\.[0-9a-f]{32}\.part|\.pixels|\.index|\.sizes\.npy)")
_HOUR = 3600
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# Before the pixels: a checksum of all that follows, height and width.
_HEADER = 12


def cached(
    images: ImageSet,
    folder: str | os.PathLike[str] | None = None,
    *,
    shorter_side: int | None = 256,
    interpolation: Interpolation = "bilinear",
    max_bytes: int = 32 * GIGABYTE,
    folder_bytes: int = 64 * GIGABYTE,
) -> ImageSet:
    """Return the same set with its images resized once and stored decoded on disk.

    The cache fills as images are read, survives the run, and is shared by all processes and all sets. Its key is the
    path of an image with the size and time of the file, the resize, and the version of Pillow, so nothing stale is
    returned. A set whose images are in memory, or in a cache already, is returned unchanged.

    Args:
        images: the set.
        folder: where to store the cache; ``decoded`` in `data_root()` unless given.
        shorter_side: length of the shorter side of the stored images; 256 is the first step of the paper's transforms.
        interpolation: of the resize; that of the model's preprocessing.
        max_bytes: limit of this set, which workers that write at once may exceed by one image each; images past it are
            decoded each time. Images of 256 pixels take 0.2 to 0.3 MB.
        folder_bytes: limit of the folder; where it is exceeded when a set is opened, images of other sets are removed,
            least recently used first.

    Raises:
        ValueError: if a limit is negative.
        OSError: if the folder cannot be written.

    Example:
        >>> from gspool import data
        >>> glyphs = data.create("glyphs", split="test", images_per_class=1)
        >>> cached(glyphs) is glyphs
        True
    """
    files, rows = selected(images.images)
    if not isinstance(files, FileImages) or isinstance(files, CachedImages):
        return images
    if min(max_bytes, folder_bytes) < 0:
        raise ValueError(
            "max_bytes and folder_bytes limit the size of the cache and must not be negative, "
            f"got {max_bytes} and {folder_bytes}"
        )
    place = data_root() / "decoded" if folder is None else Path(folder).expanduser()
    kept = CachedImages(files.paths, place, shorter_side, interpolation, max_bytes)
    try:
        kept.open(folder_bytes)
    except OSError as problem:
        raise type(problem)(
            f"decoded images cannot be stored in {place} ({problem.strerror}); choose another folder (for a run: the "
            "variable GSPOOL_DATA), or do without: --data.cache false"
        ) from None
    result = copy.copy(images)
    result.images = kept if files is images.images else SelectedImages(kept, rows)
    return result


class CachedImages(FileImages):
    """Images of files, stored decoded in a folder; see `cached`.

    Any number of processes may read, write and remove without a lock: a file is written aside and renamed, two
    processes that write one image write the same bytes, and an image that is missing or damaged is decoded again.
    """

    def __init__(
        self,
        paths: tuple[Path, ...],
        folder: Path,
        shorter_side: int | None,
        interpolation: Interpolation,
        max_bytes: int,
    ) -> None:
        super().__init__(paths)
        self.folder, self.max_bytes = folder, max_bytes
        self.shorter_side, self.interpolation = shorter_side, interpolation
        # In shared memory, so that the workers of a loader count together.
        self._stored = torch.zeros((), dtype=torch.int64).share_memory_()
        self._is_full = False

    def open(self, folder_bytes: int) -> None:
        """Mark the stored images of this set as used, and remove those of others from a folder above its limit."""
        self.folder.mkdir(parents=True, exist_ok=True)
        own = {self._file(path) for path in self.paths}
        others = []
        stored = 0
        for entry in os.scandir(self.folder):
            # Another process may remove files as well, and in a shared folder they may not be ours to touch.
            with suppress(OSError):
                state = entry.stat()
                if Path(entry.path) in own:
                    stored += state.st_size
                    os.utime(entry.path)
                elif entry.name.endswith(TEMPORARY) and time.time() - state.st_mtime < _HOUR:
                    continue  # perhaps being written
                elif _OURS.fullmatch(entry.name):
                    others.append((state.st_mtime, state.st_size, entry.path))
        excess = stored + sum(size for _, size, _ in others) - folder_bytes
        for _, size, path in sorted(others):
            if excess > 0 or path.endswith(TEMPORARY):
                with suppress(OSError):
                    os.unlink(path)
                    excess -= size
        self._stored.fill_(stored)

    def __getitem__(self, index: int) -> UInt8[Tensor, "3 H W"]:
        file = self._file(self.paths[index])
        image = None if file is None else _read(file)
        if image is None:
            image = decode(self.paths[index], self.shorter_side, self.interpolation)
            if file is not None:
                self._write(file, image)
        return image

    def count(self) -> int:
        """Count the images in the cache."""
        return sum(file is not None and file.exists() for file in map(self._file, self.paths))

    def _file(self, path: Path) -> Path | None:
        """Return the file of a decoded image, or None if its source cannot be found."""
        try:
            state = path.stat()
        except (OSError, ValueError):  # decoding it will give the reason
            return None
        key = (str(path.absolute()), state.st_size, state.st_mtime_ns, self.shorter_side, self.interpolation)
        text = repr((*key, PIL.__version__)).encode("utf-8", "surrogateescape")
        return self.folder / f"{hashlib.sha256(text).hexdigest()[:32]}{STORED}"

    def _write(self, file: Path, image: UInt8[Tensor, "3 H W"]) -> None:
        """Store an image; on a full disk warn once and store nothing more."""
        size = _HEADER + image.numel()
        if self._is_full or int(self._stored) + size > self.max_bytes:
            return
        # Counted before the slow write: the other workers see it.
        self._stored += size
        pixels = np.ascontiguousarray(image.permute(1, 2, 0).numpy())
        content = np.array(pixels.shape[:2], dtype="<u4").tobytes() + pixels.tobytes()
        # A name of its own: several processes may write the same image at once. Not by tempfile, whose files are
        # private, where a folder may be shared by a group.
        temporary = file.with_suffix(f".{uuid.uuid4().hex}{TEMPORARY}")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            temporary.write_bytes(zlib.crc32(content).to_bytes(4, "little") + content)
            temporary.replace(file)
        except OSError as problem:
            self._stored -= size
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            if problem.errno not in _NO_ROOM:
                raise
            # A full disk costs speed, not the run.
            self._is_full = True
            warnings.warn(
                f"the cache of decoded images cannot grow ({problem}); images that are not in it will be decoded each "
                "time. Free some space, choose another folder, or lower max_bytes",
                stacklevel=3,
            )


def _read(file: Path) -> UInt8[Tensor, "3 H W"] | None:
    """Read a decoded image; None if it is missing or damaged."""
    try:
        stored = np.fromfile(file, dtype=np.uint8)
    except FileNotFoundError:
        return None
    if len(stored) < _HEADER:
        return None
    checksum, height, width = stored[:_HEADER].view("<u4").tolist()
    if zlib.crc32(stored[4:].data) != checksum:
        return None
    return torch.from_numpy(stored[_HEADER:]).view(height, width, 3).permute(2, 0, 1)
