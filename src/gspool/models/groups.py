"""Split parameters into optimiser groups, each with a learning rate and a weight decay."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

NORMALISATIONS = (_BatchNorm, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)


def parameter_groups(
    model: nn.Module,
    lr: float,
    weight_decay: float = 0.0,
    multipliers: Mapping[str, float] | None = None,
) -> list[dict[str, Any]]:
    """Split the parameters of a model into groups for a `torch.optim` optimiser.

    A key of ``multipliers`` is a parameter's dotted name, the beginning of it, or any word in it (``"backbone"``,
    ``"head"``, ``"prototypes"``); the longest key that fits a parameter multiplies its learning rate. Parameters of
    normalisation layers are not decayed (Supp. 1.6; the authors' reference implementation decays all but batch norm).
    Frozen parameters are included: an optimiser skips them, and unfreezing later needs no new optimiser.

    Raises:
        ValueError: if a rate, a decay or a multiplier is negative, or a key fits no parameter.

    Example:
        >>> model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
        >>> for group in parameter_groups(model, lr=0.1, weight_decay=0.01, multipliers={"0.weight": 10}):
        ...     print(group["name"], len(group["params"]), group["lr"], group["weight_decay"])
        rest 1 0.1 0.01
        rest, not decayed 2 0.1 0.0
        0.weight 1 1.0 0.01
    """
    multipliers = dict(multipliers or {})
    for what, value in (("lr", lr), ("weight_decay", weight_decay), *multipliers.items()):
        if value < 0:
            raise ValueError(
                f"learning rates, their multipliers and weight decay cannot be negative, got {what} = {value}"
            )
    undecayed = {
        id(parameter)
        for module in model.modules()
        if isinstance(module, NORMALISATIONS)
        for parameter in module.parameters(recurse=False)
    }
    groups: dict[tuple[str, bool], list[nn.Parameter]] = {}
    for key in ("", *multipliers):
        groups[key, True], groups[key, False] = [], []
    # A set of its own for each key, because a key whose parameters all belong to longer keys is no mistake.
    fitting: set[str] = set()
    for name, parameter in model.named_parameters():
        keys = [key for key in multipliers if _fits(key, name)]
        fitting.update(keys)
        groups[max(keys, key=len, default=""), id(parameter) not in undecayed].append(parameter)
    for key in multipliers:
        if key not in fitting:
            raise ValueError(_unknown(key, model))
    return [
        {
            "name": (key or "rest") + ("" if decayed else ", not decayed"),
            "params": parameters,
            "lr": lr * multipliers.get(key, 1.0),
            "weight_decay": weight_decay if decayed else 0.0,
        }
        for (key, decayed), parameters in groups.items()
        if parameters
    ]


def _fits(key: str, name: str) -> bool:
    """Return whether a key is a dotted name, the beginning of it, or a word in it."""
    return name == key or name.startswith(f"{key}.") or key in name.split(".")


def _unknown(key: str, model: nn.Module) -> str:
    words = sorted({word for name, _ in model.named_parameters() for word in name.split(".") if not word.isdigit()})
    near = get_close_matches(key, words, n=3) or words[:8]
    return f"multipliers: no parameter is called {key!r}; names are made of words such as {', '.join(near)}"
