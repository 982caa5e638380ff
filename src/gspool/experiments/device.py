"""Where an experiment may compute on this machine."""

from __future__ import annotations


def available_devices() -> list[str]:
    """Name the devices that experiments can use here: the CPU, every GPU that CUDA finds, Apple's.

    Example:
        >>> available_devices()[0]
        'cpu'
    """
    import torch

    apple = ["mps"] if torch.backends.mps.is_available() else []
    found = [f"cuda:{number}" for number in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
    return ["cpu", *(["cuda", *found] if found else []), *apple]


def device_of(asked: str | None, name: str, on_gpu: bool = True) -> str:
    """Give the device that was asked for, or else a GPU where there is one and the experiment can use it.

    Args:
        asked: what was typed; None for nothing.
        name: of the experiment.
        on_gpu: whether it can compute on a GPU at all.

    Raises:
        ValueError: if there is no such device here, or the experiment cannot use it.

    Example:
        >>> device_of(None, "toy", on_gpu=False), device_of("cpu", "mu")
        ('cpu', 'cpu')
    """
    there = available_devices()
    if not on_gpu and asked not in (None, "cpu"):
        raise ValueError(f"{name} computes on the CPU alone, got --device {asked}; leave it out")
    if asked is None:
        return "cuda" if on_gpu and "cuda" in there else "cpu"
    if asked not in there:
        raise ValueError(f"there is no device {asked!r} here; available: {', '.join(there)}")
    return asked
