"""Freeze parts of a backbone, and set evaluation mode for a while."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Literal, get_args

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

Freeze = Literal["none", "batchnorm", "all"]


def freeze_parameters(backbone: nn.Module, freeze: Freeze, learnable: Collection[str]) -> None:
    """Set which parameters of a backbone are trained: all, all but those of batch norm, or none.

    ``batchnorm`` is the setting of the authors' reference implementation: affine parameters and running statistics of
    batch norm stay fixed. ``all`` fixes every parameter and statistic. Only names in ``learnable`` are ever trained.
    The statistics are fixed by `hold_statistics`, which must run after each change of mode.

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

    A backbone that is frozen as a whole is put there as a whole: dropout and stochastic depth would only add noise to
    features that cannot adapt to it.
    """
    if freeze == "all":
        backbone.eval()
    elif freeze == "batchnorm":
        for module in backbone.modules():
            if isinstance(module, _BatchNorm):
                module.eval()


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Set evaluation mode, and restore the mode of every module afterwards: frozen batch norms differ from the rest."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
