"""Room for a new list in a folder of decoded caches: those that nobody uses any more go, the longest unused first.

A list of pictures that changes by a single file is another list with a cache of its own, so that without this a folder
of pictures that grows every day would leave a copy of itself on the disk every day.
"""

from __future__ import annotations

import os
import re
import shutil
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

try:
    import fcntl
except ModuleNotFoundError:  # on Windows, where a file that a process has open cannot be removed anyway
    fcntl = None  # type: ignore[assignment]

SIZES, PIXELS, INDEX = ".sizes.npy", ".pixels", ".index"
_OURS = re.compile(rf"[0-9a-f]{{32}}(?={'|'.join(map(re.escape, (SIZES, PIXELS, INDEX)))}$)")


class Kept(NamedTuple):
    """The cache of one list: its files, the room that they take, and when a process last opened or filled it."""

    files: tuple[Path, ...]
    room: int
    used: float


def make_room(stem: Path, needed: int, bound: int) -> None:
    """Remove caches beside ``stem`` until its ``needed`` bytes fit into the bound of the folder and onto the disk.

    Those that a process has open stay. Where one is about to open what is removed here, it decodes again and loses
    nothing else: files that are open go on to exist for those who have them open.
    """
    kept = sorted(_others(stem), key=lambda cache: cache.used)
    room = sum(cache.room for cache in kept)
    for cache in kept:
        if room + needed <= bound and needed <= shutil.disk_usage(stem.parent).free:
            return
        if _removed(cache):
            room -= cache.room


def mark_used(index: int) -> None:
    """Say of an index, by its descriptor, that this process uses it, now and as long as the descriptor is open."""
    # Some file systems have no locks, and in a folder of others times may not be ours to set: the cache works without.
    with suppress(OSError):
        os.utime(index)
    if fcntl is not None:
        with suppress(OSError):
            fcntl.flock(index, fcntl.LOCK_SH | fcntl.LOCK_NB)


def _others(stem: Path) -> list[Kept]:
    groups: dict[str, list[tuple[Path, os.stat_result]]] = defaultdict(list)
    for entry in os.scandir(stem.parent):
        ours = _OURS.match(entry.name)
        if ours and ours.group() != stem.name:
            with suppress(FileNotFoundError):  # another process makes room as well
                groups[ours.group()].append((Path(entry.path), entry.stat()))
    return [
        Kept(
            tuple(path for path, _ in files),
            sum(512 * state.st_blocks for _, state in files),  # the files are sparse: their length says nothing
            max(state.st_mtime for _, state in files),
        )
        for files in groups.values()
    ]


def _removed(cache: Kept) -> bool:
    """Remove a cache unless it is in use, or not ours to remove."""
    index = next((file for file in cache.files if file.suffix == INDEX), None)
    try:
        lock = os.open(index, os.O_RDWR) if index is not None else None
        try:
            if lock is not None and fcntl is not None:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for file in cache.files:
                file.unlink(missing_ok=True)
        finally:
            if lock is not None:
                os.close(lock)
    except OSError:
        return False
    return True
