"""Can what will be written be written? Asked before the work, which may take hours."""

from __future__ import annotations

import os
from pathlib import Path


def check_writable(folder: Path, option: str) -> None:
    """Make a folder and write into it.

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
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.write_bytes(b"x")
        probe.unlink()
    except OSError as error:
        raise ValueError(
            f"nothing can be written to the folder {folder} ({error.strerror or error}); "
            f"choose another with {option}, or change its permissions"
        ) from error


def check_file_writable(path: str | Path, option: str) -> None:
    """Make the folder of a file and write into it; what the file holds, if it is there, stays.

    Raises:
        ValueError: if that is not possible, or there is a folder of that name.
    """
    place = Path(path).expanduser()
    if place.is_dir():
        raise ValueError(f"{place} is a folder, and {option} writes a file; give it another name")
    if place.exists() and not os.access(place, os.W_OK):
        raise ValueError(f"the file {place} may not be written; choose another with {option}")
    check_writable(place.parent, option)
