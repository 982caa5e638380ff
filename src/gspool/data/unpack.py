"""Unpack an archive so that its folder appears complete or not at all."""

from __future__ import annotations

import shutil
import tarfile
import tempfile
import zipfile
from pathlib import Path


def unpack(archive: Path, folder: str, into: Path) -> Path:
    """Unpack ``archive`` and move its ``folder`` to ``into``; give where it now lies.

    The members go to a folder aside and are renamed at the end: an unpacking that was interrupted leaves no tree that
    looks finished. Members that point outside are refused.

    Raises:
        ValueError: if the archive is damaged, or does not hold that folder.
    """
    target = into / folder
    if target.exists():
        return target
    with tempfile.TemporaryDirectory(prefix=".unpacking-", dir=into) as aside:
        try:
            if zipfile.is_zipfile(archive):
                with zipfile.ZipFile(archive) as members:
                    members.extractall(aside)
            else:
                with tarfile.open(archive) as members:
                    members.extractall(aside, filter="data")
        except (tarfile.TarError, zipfile.BadZipFile, EOFError, OSError) as problem:
            raise ValueError(f"{archive} cannot be unpacked ({problem}); delete it and fetch it again") from problem
        unpacked = Path(aside) / folder
        if not unpacked.exists():
            found = sorted(entry.name for entry in Path(aside).iterdir())
            raise ValueError(f"{archive} holds {found[:5]}, expected a folder {folder}; is it another archive?")
        shutil.move(unpacked, target)
    return target
