"""Choose the device, and see what fits into its memory."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

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


def computes_bf16(device: str | torch.device) -> bool:
    """Return whether a device computes in bfloat16 faster than in float32: GPUs, and CPUs with instructions for it."""
    if torch.device(device).type == "cuda":
        return torch.cuda.is_bf16_supported()
    # Older versions of torch do not know the CPU, and stay in float32.
    known: Mapping[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    return any(known.get(name) for name in ("avx512_bf16", "amx_bf16", "bf16"))


def laid_out_for(network: torch.nn.Module, images: torch.Tensor) -> torch.Tensor:
    """Return images with their channels last for a convolutional network, as CPUs and GPUs read them fastest.

    Convolutions keep the layout of their input, so the network itself is left as it is.
    """
    several = sum(isinstance(part, torch.nn.Conv2d) for part in network.modules()) > 1
    return images.contiguous(memory_format=torch.channels_last) if several else images


def free_memory(device: str | torch.device) -> int:
    """Return the free bytes of a GPU, or of the machine."""
    if torch.device(device).type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
