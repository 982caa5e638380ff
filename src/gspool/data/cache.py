"""A cache of decoded images on disk: each image is decoded once and then read by memory map."""

from __future__ import annotations

import copy
import hashlib
import json
import os
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import PIL
import torch

from gspool.data.cache_files import NO_ROOM, SIZES, TEMPORARY, CacheFiles, make_room
from gspool.data.decode import BrokenImageError, Interpolation, decode, printable, stored_size
from gspool.data.image_set import ImageSet
from gspool.data.image_source import FileImages, SelectedImages
from gspool.data.registry import data_root

if TYPE_CHECKING:
    from jaxtyping import UInt8
    from torch import Tensor

GIGABYTE = 1 << 30


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

    The cache fills as images are read, survives the run, and is shared by all processes and by all parts of one list
    (folds, for example). Its key is the list of paths with the sizes and times of the files, the resize, and the
    version of Pillow, so nothing stale is returned. Images past ``max_bytes`` are decoded each time. When a new list is
    added, caches of other lists that no process has open are removed, least recently used first, until the new one
    fits into ``folder_bytes`` and onto the disk. A set whose images are in memory is returned unchanged.

    Args:
        images: the set.
        folder: where to store the cache; ``decoded`` in `data_root()` unless given.
        shorter_side: length of the shorter side of the stored images; 256 is the first step of the paper's transforms.
        interpolation: of the resize; that of the model's preprocessing.
        max_bytes: limit of this list. Images of 256 pixels take 0.2 to 0.3 MB each.
        folder_bytes: limit of all lists of the folder together, as far as older ones can be removed.

    Raises:
        ValueError: if a limit is negative.
        OSError: if the folder cannot be written.

    Example:
        >>> from gspool import data
        >>> glyphs = data.create("glyphs", split="test", images_per_class=1)
        >>> cached(glyphs) is glyphs
        True
    """
    source = images.images
    files = source.source if isinstance(source, SelectedImages) else source
    if not isinstance(files, FileImages):
        return images
    place = data_root() / "decoded" if folder is None else Path(folder).expanduser()
    try:
        kept = CachedImages(files, place, shorter_side, interpolation, max_bytes, folder_bytes)
    except OSError as problem:
        if problem.errno in NO_ROOM:
            raise
        raise type(problem)(
            f"decoded images cannot be stored in {place} ({problem.strerror}); choose another folder (for a run: the "
            "variable GSPOOL_DATA), or do without: --data.cache false"
        ) from None
    result = copy.copy(images)
    result.images = SelectedImages(kept, source.indices) if isinstance(source, SelectedImages) else kept
    return result


class CachedImages:
    """Images of files, stored decoded in a folder; see `cached`."""

    def __init__(
        self,
        source: FileImages,
        folder: Path,
        shorter_side: int | None,
        interpolation: Interpolation,
        max_bytes: int,
        folder_bytes: int,
    ) -> None:
        if min(max_bytes, folder_bytes) < 0:
            raise ValueError(
                "max_bytes and folder_bytes limit the size of the cache and must not be negative, "
                f"got {max_bytes} and {folder_bytes}"
            )
        folder.mkdir(parents=True, exist_ok=True)
        self.paths = source.paths
        self.shorter_side, self.interpolation = shorter_side, interpolation
        self.stem = folder / _key(source.paths, shorter_side, interpolation)
        sizes_file = self.stem.with_suffix(SIZES)
        known = _known(sizes_file)
        self.sizes = _measured(source.paths, shorter_side) if known is None else known
        self.lengths = 3 * self.sizes.prod(axis=1)
        ends = np.cumsum(self.lengths)
        self.starts = ends - self.lengths
        self.kept = int(np.searchsorted(ends, max_bytes, side="right"))
        self._open: CacheFiles | None = None
        if known is None:
            make_room(self.stem, int(ends[self.kept - 1]) if self.kept else 0, folder_bytes)
            _keep(self.sizes, sizes_file)

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> UInt8[Tensor, "3 H W"]:
        row = range(len(self))[index]
        width, height = self.sizes[row].tolist()
        if row >= self.kept or width == 0:
            return decode(self.paths[row], self.shorter_side, self.interpolation)
        pixels = self._files().read(row)
        if pixels is not None:
            return torch.from_numpy(pixels).view(height, width, 3).permute(2, 0, 1)
        image = decode(self.paths[row], self.shorter_side, self.interpolation)
        if image.shape == (3, height, width):
            self._files().write(row, np.ascontiguousarray(image.permute(1, 2, 0).numpy()))
        return image

    def __getstate__(self) -> dict[str, Any]:
        # Memory maps and descriptors belong to a process; a worker opens its own.
        return {**self.__dict__, "_open": None}

    def describe(self, index: int) -> str:
        """Return the path, in printable form."""
        return printable(self.paths[index])

    def count(self) -> int:
        """Count the images in the cache."""
        return self._files().count() if self.kept else 0

    def _files(self) -> CacheFiles:
        """Open the files when this process first needs them."""
        if self._open is None:
            self._open = CacheFiles(self.stem, self.starts[: self.kept], self.lengths[: self.kept])
        return self._open


def _key(paths: tuple[Path, ...], shorter_side: int | None, interpolation: Interpolation) -> str:
    """Compute the key of a list of files."""
    files = []
    for path in paths:
        state = path.stat() if path.exists() else None
        known = (-1, -1) if state is None else (state.st_size, state.st_mtime_ns)
        files.append((str(path.absolute()), *known))
    text = json.dumps([shorter_side, interpolation, PIL.__version__, files])
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:32]


def _known(file: Path) -> npt.NDArray[np.int64] | None:
    """Read the sizes that were written when the list was added."""
    try:
        known: npt.NDArray[np.int64] = np.load(file)
    except FileNotFoundError:
        return None
    return known


def _measured(paths: tuple[Path, ...], shorter_side: int | None) -> npt.NDArray[np.int64]:
    """Return (width, height) of every decoded image; 0 x 0 for files that cannot be opened as an image."""
    sizes = np.zeros((len(paths), 2), dtype=np.int64)
    for row, path in enumerate(paths):
        try:
            sizes[row] = stored_size(path, shorter_side)
        except BrokenImageError:
            continue  # reading this image will give the reason
    return sizes


def _keep(sizes: npt.NDArray[np.int64], file: Path) -> None:
    """Write the sizes, so that the next process need not open every image; on a full disk it will have to."""
    # Not by `write_atomic`, whose temporary name is one for all: several processes may add the same list at once. Nor
    # by tempfile, whose files are private, where a folder may be shared by a group.
    key = file.name.removesuffix(SIZES)
    temporary = file.with_name(f"{key}.{uuid.uuid4().hex}{TEMPORARY}")
    try:
        with temporary.open("xb") as open_file:
            np.save(open_file, sizes)
        temporary.replace(file)
    except OSError as problem:
        temporary.unlink(missing_ok=True)
        if problem.errno not in NO_ROOM:
            raise
