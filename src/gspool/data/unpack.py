"""Unpack an archive so that its folder appears complete or not at all."""

from __future__ import annotations

import shutil
import tarfile
import zipfile
from pathlib import Path


def unpack(archive: Path, folder: str, into: Path) -> Path:
    """Unpack ``archive`` and move its ``folder`` into ``into``; return where it is.

    Members are written to a temporary folder, which is renamed at the end: an interrupted unpacking leaves nothing that
    looks complete, and what it left is removed by the next. Members that point outside are refused. Only one process
    may unpack an archive at a time.

    Raises:
        ValueError: if the archive is damaged, or does not hold that folder.
    """
    target = into / folder
    if target.exists():
        return target
    temporary = into / f".unpacking-{folder}"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    try:
        try:
            if zipfile.is_zipfile(archive):
                with zipfile.ZipFile(archive) as members:
                    members.extractall(temporary)
            else:
                with tarfile.open(archive) as members:
                    members.extractall(temporary, filter="data")
        except (tarfile.TarError, zipfile.BadZipFile, EOFError, OSError) as problem:
            raise ValueError(f"{archive} cannot be unpacked ({problem}); delete it and fetch it again") from problem
        unpacked = temporary / folder
        if not unpacked.exists():
            found = sorted(entry.name for entry in temporary.iterdir())
            raise ValueError(f"{archive} holds {found[:5]}, expected a folder {folder}; is it another archive?")
        unpacked.rename(target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return target
