"""Folders that a run writes to: looked at before the work, so that hours of it cannot end in an error."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from gspool.experiments.certificate import is_quick, read_result


def try_to_write(folder: Path, flag: str) -> None:
    """Write and remove a file in a folder, made for it where it is not there; nothing of that remains.

    Args:
        folder: where a run is going to write.
        flag: the option that names it.

    Raises:
        ValueError: if that is not possible.
    """
    missing: list[Path] = []
    probe = folder / f".gspool-{os.getpid()}"
    try:
        missing += [each for each in (folder, *folder.parents) if not each.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as wrong:
        raise ValueError(
            f"{folder} cannot be written to ({wrong.strerror}); give another folder with {flag}"
        ) from wrong
    finally:
        for each in missing:
            # It may not have come to be, and somebody else may have written there meanwhile.
            with suppress(OSError):
                each.rmdir()


def refuse_measured(results: Path) -> None:
    """Refuse to write a tiny version among measured results.

    Raises:
        ValueError: if the folder holds one.
    """
    for path in sorted(results.glob("*.json")):
        try:
            record = read_result(path)
        except ValueError:
            continue
        if not is_quick(record):
            raise ValueError(
                f"--quick measures nothing, and {results} holds what was measured ({path.name}): leave --results out, "
                "or give a folder of its own"
            )
