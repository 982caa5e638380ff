"""Files that survive a crash: atomic writes, locks, checksums. Anything in the package may import this module."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def write_atomic(path: Path, content: bytes) -> None:
    """Replace a file in one step: a reader, or a crash, sees the old content or the new, never half of it.

    Its folder is created if it is missing.
    """
    # One name: what a crash left behind is overwritten by the next write.
    temporary = path.with_name(f".{path.name}.part")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            # Without this the rename may reach the disk before the content does.
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def sha256_of(path: Path) -> str:
    """Compute the SHA-256 of a file, in pieces.

    Example:
        >>> sha256_of(Path("/dev/null"))[:8]
        'e3b0c442'
    """
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def lock(lock_file: Path, message: str, *, optional: bool = False) -> Iterator[None]:
    """Hold an exclusive lock; the file is removed with it, and a crash releases it.

    Args:
        lock_file: the file, in an existing folder.
        message: the error where another process holds the lock.
        optional: go on without a lock on a file system that has none.

    Raises:
        ValueError: if another process holds it.
    """
    from filelock import FileLock, Timeout

    held = FileLock(lock_file)
    try:
        held.acquire(timeout=0)
    except Timeout as error:
        raise ValueError(message) from error
    except NotImplementedError:
        if not optional:
            raise
    try:
        yield
    finally:
        if held.is_locked:
            lock_file.unlink(missing_ok=True)
            held.release()
