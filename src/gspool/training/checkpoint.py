"""Checkpoints: written aside, flushed to the disk and renamed, so that the last good one always survives."""

from __future__ import annotations

import errno
import io
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from gspool.files import write_atomic

LAST, BEST = "last.pt", "best.pt"
# Raised with the layout of the file; an older file is then refused in words.
FORMAT = 1


class CheckpointError(RuntimeError):
    """A checkpoint could not be written or read; what was there before is untouched."""


def write_checkpoint(path: Path, content: dict[str, Any]) -> None:
    """Replace a checkpoint in one step.

    Raises:
        CheckpointError: if the disk is full or refuses; the former checkpoint is still there and whole.
    """
    buffer = io.BytesIO()
    torch.save({"format": FORMAT, **content}, buffer)
    try:
        write_atomic(path, buffer.getvalue())
    except OSError as error:
        before = f"the one before it is kept: {path}" if path.exists() else "there was none before it"
        raise CheckpointError(
            f"could not write the checkpoint {path} ({buffer.tell() / 1e6:.1f} MB): {error}; {before}. "
            f"Make room, then go on with: gspool train --resume {path.parent}"
        ) from error


@contextmanager
def full_disk_told(folder: Path) -> Iterator[None]:
    """Tell of a disk that fills up under anything else that a run writes: metrics, curves, the model, its figures.

    Raises:
        CheckpointError: in place of the OSError, with what is kept and how to go on.
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


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint; tensors and plain values only, a pickle that would run code is refused.

    Raises:
        CheckpointError: if it is damaged, or of another format.
    """
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, OSError) as error:
        raise CheckpointError(f"{path} cannot be read ({error}); delete it to start this run again") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        found = content.get("format") if isinstance(content, dict) else type(content).__name__
        raise CheckpointError(
            f"{path} has format {found}, this version reads {FORMAT}; resume with the version of gspool that wrote it"
        )
    return content
