"""Which part of a backbone stands still, and how it keeps standing still."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal, get_args

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

Freeze = Literal["none", "batchnorm", "all"]


def freeze_parameters(backbone: nn.Module, freeze: Freeze, learnable: Collection[str]) -> None:
    """Let a backbone learn in full, all but its batch norm, or not at all.

    ``batchnorm`` is the setting of the authors' reference implementation: affine parameters and running statistics of
    batch norm stay as they came. ``all`` holds every parameter and every statistic. What is not among the ``learnable``
    names never learns. The statistics are held by `hold_statistics`, which must run after each change of mode.

    Raises:
        ValueError: if there is no such setting.
    """
    if freeze not in get_args(Freeze):
        raise ValueError(f"freeze must be one of {', '.join(get_args(Freeze))}, got {freeze!r}")
    held = {
        id(parameter)
        for module in backbone.modules()
        if freeze == "all" or (freeze == "batchnorm" and isinstance(module, _BatchNorm))
        for parameter in module.parameters(recurse=False)
    }
    for name, parameter in backbone.named_parameters():
        parameter.requires_grad_(name in learnable and id(parameter) not in held)


def hold_statistics(backbone: nn.Module, freeze: Freeze) -> None:
    """Put what is frozen into evaluation mode, where statistics are read and not written.

    A backbone that is frozen as a whole is held as a whole: dropout and stochastic depth would only make noise of
    features that cannot adapt to it.
    """
    if freeze == "all":
        backbone.eval()
    elif freeze == "batchnorm":
        for module in backbone.modules():
            if isinstance(module, _BatchNorm):
                module.eval()
