"""Choose the device, and see what fits into its memory."""

from __future__ import annotations

import os

import torch


def chosen_device(device: str | torch.device | None = None) -> torch.device:
    """Return the device asked for, otherwise a GPU if there is one.

    Raises:
        ValueError: if there is no such device here.
    """
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        # The first tensor shows whether it can be used at all.
        return torch.zeros(1, device=device).device
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        first = str(error).splitlines()[0]
        raise ValueError(
            f"device {str(device)!r} cannot be used here ({first}); leave it out, or use cpu or an existing GPU"
        ) from error


def free_memory(device: str | torch.device) -> int:
    """Return the free bytes of a GPU, or of the machine."""
    if torch.device(device).type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
