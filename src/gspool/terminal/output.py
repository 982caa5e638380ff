"""Can what will be written be written? Asked before the work, which may take hours."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path

_REMEDIES: dict[int | None, str] = dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "make room there")


def check_writable(folder: Path, option: str) -> None:
    """Write and remove a file in a folder, made for it where it is not there; nothing of that remains.

    Args:
        folder: where something will be written.
        option: what a person changes to write somewhere else, ``--output.folder``.

    Raises:
        ValueError: if that is not possible, with the reason and what to do.

    Example:
        >>> check_writable(Path("/dev/null/runs"), "--work")
        Traceback (most recent call last):
        ValueError: nothing can be written to the folder /dev/null/runs (Not a directory); choose another with --work...
    """
    # Processes that share a folder try it at the same time.
    probe = folder / f".write-test-{os.getpid()}"
    missing: list[Path] = []
    try:
        missing += [each for each in (folder, *folder.parents) if not each.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        probe.write_bytes(b"x")
    except OSError as error:
        raise ValueError(
            f"nothing can be written to the folder {folder} ({error.strerror or error}); "
            f"choose another with {option}, or {_REMEDIES.get(error.errno, 'change its permissions')}"
        ) from error
    finally:
        # On a full disk there is a file without its content; where nothing may be written there is none.
        with suppress(OSError):
            probe.unlink()
        for each in missing:
            # It may not have come to be, and somebody else may have written there meanwhile.
            with suppress(OSError):
                each.rmdir()


def check_file_writable(path: str | Path, option: str) -> None:
    """Write into the folder of a file, and leave it as it was; what the file holds, if it is there, stays.

    Raises:
        ValueError: if that is not possible, or there is a folder of that name.
    """
    place = Path(path).expanduser()
    if place.is_dir():
        raise ValueError(f"{place} is a folder, and {option} writes a file; give it another name")
    if place.exists() and not os.access(place, os.W_OK):
        raise ValueError(f"the file {place} may not be written; choose another with {option}")
    check_writable(place.parent, option)
