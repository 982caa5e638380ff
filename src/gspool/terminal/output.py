"""Check that results can be written, before hours of work."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path

from gspool.terminal.status import WrongArgumentsError

_REMEDIES: dict[int | None, str] = dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "make room there")


def check_writable(folder: Path, option: str) -> None:
    """Check that a folder can be written, by a temporary file; a missing folder is created and removed again.

    Args:
        folder: where something will be written.
        option: the option that changes the folder, such as ``--output.folder``.

    Raises:
        ValueError: if it cannot be written, with the reason and what to do.

    Example:
        >>> check_writable(Path("/dev/null/runs"), "--work")
        Traceback (most recent call last):
        ValueError: nothing can be written to the folder /dev/null/runs (Not a directory); choose another with --work...
    """
    # Several processes may check one folder at the same time.
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
        # On a full disk the file exists without its content; in a read-only folder it does not exist.
        with suppress(OSError):
            probe.unlink()
        for each in missing:
            # It may not exist, and another process may have written there meanwhile.
            with suppress(OSError):
                each.rmdir()


def check_file_writable(path: str | Path, option: str) -> Path:
    """Check that a file can be written, and return it without ``~``; an existing file does not change.

    Raises:
        ValueError: if it cannot be written, or is a folder.
    """
    place = Path(path).expanduser()
    if place.is_dir():
        raise ValueError(f"{place} is a folder, and {option} writes a file; choose another name")
    if place.exists() and not os.access(place, os.W_OK):
        raise ValueError(f"the file {place} is not writable; choose another with {option}")
    check_writable(place.parent, option)
    return place


def check_output(path: str | None, option: str, endings: tuple[str, ...] = ("",)) -> str | None:
    """Check that an option names a file of one of some endings that can be written, and return it without ``~``.

    None and - are no file, and returned as they are.

    Raises:
        WrongArgumentsError: if it ends in another way.
        ValueError: if it cannot be written.
    """
    if path is None or path == "-":
        return path
    if not path.lower().endswith(endings):
        raise WrongArgumentsError(f"{option} is a file that ends in {' or '.join(endings)}, got {path!r}")
    return str(check_file_writable(path, option))


def shown(text: str) -> str:
    r"""Return a text of others, such as a file name, with escapes in the place of what would control a terminal.

    Example:
        >>> shown("caf\x1b[2J é.jpg")
        'caf\\x1b[2J é.jpg'
    """
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)
