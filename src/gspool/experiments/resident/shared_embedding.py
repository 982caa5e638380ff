"""The embedding that another model begins with, so that two trainings differ in what is compared and not in a draw."""

from __future__ import annotations

from typing import Any

import torch


@torch.no_grad()
def share_embedding(model: Any, other: Any) -> bool:
    """Let a model begin with the embedding of another; says whether their shapes allow it.

    Example:
        >>> from gspool import Embedder
        >>> ours, theirs = (Embedder("small_cnn", pooling=name, dim=8) for name in ("gap", "gsp"))
        >>> share_embedding(ours, theirs), torch.equal(ours.head.embed.weight, theirs.head.embed.weight)
        (True, True)
    """
    mine, theirs = (getattr(getattr(each, "head", None), "embed", None) for each in (model, other))
    if mine is None or theirs is None:
        return False
    values = theirs.state_dict()
    if {name: value.shape for name, value in mine.state_dict().items()} != {
        name: value.shape for name, value in values.items()
    }:
        return False
    mine.load_state_dict(values)
    return True
