"""Where a model computes."""

from __future__ import annotations

import torch


def chosen_device(device: str | torch.device | None = None) -> torch.device:
    """Choose where to compute: what was asked for, otherwise a GPU where there is one.

    Raises:
        ValueError: if there is no such device here.

    Example:
        >>> chosen_device("cpu")
        device(type='cpu')
    """
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        # The first tensor there tells whether it can be used at all.
        return torch.zeros(1, device=device).device
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        first = str(error).splitlines()[0]
        raise ValueError(
            f"device {str(device)!r} cannot be used here ({first}); leave it out, or give cpu or a GPU that is there"
        ) from error
