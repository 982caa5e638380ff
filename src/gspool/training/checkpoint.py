"""Checkpoints that cannot be half written, with a checksum, and with the one before as a fallback."""

from __future__ import annotations

import errno
import hashlib
import io
import os
import shutil
import warnings
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from gspool.files import write_atomic

LAST, PREVIOUS, BEST, DAMAGED = "last.pt", "previous.pt", "best.pt", "last.damaged.pt"
# Files of format 1 have no checksum at their end; the CRC of their zip archive is checked instead.
FORMAT, WITHOUT_CHECKSUM = 2, 1
SEAL = b"\nsha256 "


class CheckpointError(RuntimeError):
    """A checkpoint could not be written or read; what was there before is untouched."""


def write_checkpoint(path: Path, content: dict[str, Any]) -> None:
    """Replace a checkpoint atomically. The file ends with the SHA-256 of all that is before.

    Raises:
        CheckpointError: if the disk is full or refuses; the former checkpoint is still there and whole.
    """
    buffer = io.BytesIO()
    torch.save({"format": FORMAT, **content}, buffer)
    payload = buffer.getvalue()
    try:
        if path.name == LAST and path.exists():
            _keep_as_previous(path)
        write_atomic(path, payload + SEAL + hashlib.sha256(payload).hexdigest().encode())
    except OSError as error:
        before = f"the one before it is kept: {path}" if path.exists() else "there was none before it"
        raise CheckpointError(
            f"could not write the checkpoint {path} ({len(payload) / 1e6:.1f} MB): {error}; {before}. "
            f"Make room, then go on with: gspool train --resume {path.parent}"
        ) from error


def _keep_as_previous(path: Path) -> None:
    """Link the checkpoint as the previous one; its own name stays until the new checkpoint is whole."""
    aside = path.with_name(f".{PREVIOUS}.part")
    aside.unlink(missing_ok=True)
    try:
        os.link(path, aside)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise
        shutil.copyfile(path, aside)  # a file system without hard links
    os.replace(aside, path.with_name(PREVIOUS))


def read_checkpoint(path: Path, needed: Iterable[str] = ()) -> dict[str, Any]:
    """Read a checkpoint: tensors and plain values only, a pickle that would run code is refused.

    Raises:
        CheckpointError: if it is damaged, no checkpoint of this format, or lacks an entry that is ``needed``.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read ({error.strerror or error})") from error
    payload, seal, checksum = data.rpartition(SEAL)
    is_sealed = bool(seal) and len(checksum) == 64
    if is_sealed and hashlib.sha256(payload).hexdigest().encode() != checksum:
        raise CheckpointError(f"{path} is damaged: its checksum does not match")
    try:
        if not is_sealed and zipfile.ZipFile(io.BytesIO(data)).testzip() is not None:
            raise CheckpointError(f"{path} is damaged: a checksum inside it does not match")
        content = torch.load(io.BytesIO(payload if is_sealed else data), map_location="cpu", weights_only=True)
    except CheckpointError:
        raise
    except Exception as error:  # whatever the bytes of a file make zip, pickle and torch raise
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise CheckpointError(f"{path} cannot be read as a checkpoint ({reason})") from error
    found = content.get("format") if isinstance(content, dict) else type(content).__name__
    if found != (FORMAT if is_sealed else WITHOUT_CHECKSUM):
        raise CheckpointError(
            f"{path} has format {found}{'' if is_sealed else ' and no checksum'}; this version reads {FORMAT} with a "
            f"checksum and {WITHOUT_CHECKSUM} without. Resume with the version of gspool that wrote it"
        )
    missing = [name for name in needed if name not in content]
    if missing:
        raise CheckpointError(f"{path} is not a checkpoint of a training run: it has no {', '.join(missing)}")
    return content


def read_newest(folder: Path, needed: Iterable[str] = ()) -> dict[str, Any] | None:
    """Read the last checkpoint of a run, or the one before if the last is damaged; None where there is neither.

    Raises:
        CheckpointError: if none of them can be read.

    Warns:
        UserWarning: if the fallback is used.
    """
    last, previous = folder / LAST, folder / PREVIOUS
    if not last.exists() and not previous.exists():
        return None
    try:
        return read_checkpoint(last, needed)
    except CheckpointError as error:
        if not previous.exists():
            raise CheckpointError(f"{error}, and there is no {PREVIOUS} beside it. Delete it to start again") from error
        try:
            content = read_checkpoint(previous, needed)
        except CheckpointError as second:
            raise CheckpointError(f"{error}; {second}. Delete both to start this run again") from second
        # Out of the way: the next checkpoint would make it the fallback.
        with suppress(FileNotFoundError):
            os.replace(last, last.with_name(DAMAGED))
        warnings.warn(f"{error}; going on from {previous}, step {content.get('step')}", stacklevel=2)
        return content


@contextmanager
def full_disk_explained(folder: Path) -> Iterator[None]:
    """Explain a disk that fills up under anything a run writes: metrics, curves, the model, its figures.

    Raises:
        CheckpointError: instead of the OSError, with what is kept and how to go on.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        kept = f"the last checkpoint is kept: {folder / LAST}" if (folder / LAST).exists() else "nothing was kept yet"
        raise CheckpointError(
            f"the disk of {folder} is full ({error}); {kept}. "
            f"Make room, then go on with: gspool train --resume {folder}"
        ) from error
