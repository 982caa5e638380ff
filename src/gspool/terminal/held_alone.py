"""A place on disk that one process at a time may work at."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout


@contextmanager
def held_alone(lock_file: Path, taken: str, *, or_unguarded: bool = False) -> Iterator[None]:
    """Hold a lock; the file goes with it, and a crash lets go of it by itself.

    Args:
        lock_file: the file, in a folder that is there.
        taken: what to say where another process has it.
        or_unguarded: go on without a lock on a file system that has none.

    Raises:
        ValueError: if another process has it.
    """
    lock = FileLock(lock_file)
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        raise ValueError(taken) from error
    except NotImplementedError:
        if not or_unguarded:
            raise
    try:
        yield
    finally:
        if lock.is_locked:
            lock_file.unlink(missing_ok=True)
            lock.release()
