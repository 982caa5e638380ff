"""Settings of heads on frozen features: those that a grid may vary, and what validation chose for every layer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from gspool.pooling.registry import without_class_token

# Options that every layer has on frozen features, unless it has others below.
USUAL = {"lr": 3e-4, "rate": 1.0, "prototypes_from": "tokens"}
# What validation classes of CUB chose for every head on a frozen ResNet50, where it is not the usual
# (docs/frozen_study.md); the defaults of the layers themselves are those of tuned networks.
FROZEN_DEFAULTS: dict[str, dict[str, Any]] = {
    "gmp": {"lr": 1e-4},
    "weldon": {"lr": 1e-4},
    "lse": {"lr": 1e-4},
    "gemean": {"lr": 1e-4, "rate": 30.0},
    "gemax": {"lr": 9e-4},
    "cbam": {"rate": 10.0},
    "delf": {"lr": 9e-4},
    "gsop": {"lr": 9e-4, "rate": 0.3},
    "solar": {"rate": 0.3},
    "otp": {"lr": 9e-4, "rate": 10.0},
    "vlad": {"lr": 9e-4},
    "tfm": {"lr": 9e-4, "rate": 0.1},
    "attention": {"rate": 0.1},
    "simpool": {"rate": 0.1},
    "abmilp": {"lr": 9e-4, "rate": 10.0},
    "map": {"lr": 1e-4},
    "ep": {"queries": 2, "rate": 30.0},
    "gsp": {"mu": 0.05, "epsilon": 10.0, "prototypes": 8, "prototypes_from": "kmeans"},
    "gmp+gsp": {"mu": 0.05, "epsilon": 10.0, "prototypes": 64, "prototypes_from": "kmeans"},
    "gemean+gsp": {"mu": 0.1, "epsilon": 5.0, "prototypes": 64, "keys": 128, "prototypes_from": "kmeans"},
}
# The same on the tokens of a DINOv2: each prototype of GSP selects a few tokens for its own slice of the channels.
PATCH_GSP = {
    "mu": 0.003,
    "epsilon": 20.0,
    "prototypes": 32,
    "groups": 32,
    "prototypes_from": "kmeans",
    "rate": 300.0,
}
# Class token and patches: side by side the patches add to the class token, in a sum they do not.
BESIDE = {"patch_scale": 0.5, "join": "concat"}
PATCH_DEFAULTS: dict[str, dict[str, Any]] = {
    **FROZEN_DEFAULTS,
    "gap": {"lr": 9e-4},
    "gmp": {"lr": 9e-4},
    "delf": {"lr": 9e-4},
    "simpool": {"lr": 9e-4, "rate": 0.1},
    "abmilp": {"lr": 9e-4},
    "ep": {"queries": 32, "rate": 100.0},
    "gsp": PATCH_GSP,
    "delf+cls": {**BESIDE, "lr": 1e-4, "rate": 0.3},
    "abmilp+cls": BESIDE,
    "ep+cls": {**BESIDE, "queries": 32, "lr": 1e-4, "rate": 100.0},
    "gsp+cls": {**BESIDE, **PATCH_GSP},
}
# Options of a head beside those of its layer, with their section and field of a training configuration.
HEAD_OPTIONS = {
    "start": ("head", "start"),
    "prototypes_from": ("head", "prototypes"),
    "rate": ("head", "rate"),
    "token_dropout": ("head", "token_dropout"),
    "feature_dropout": ("head", "feature_dropout"),
    "lr": ("optimiser", "lr"),
    "zsr": ("loss", "zsr"),
    "zsr_scale": ("zsr_options", "scale"),
    "zsr_repeats": ("zsr_options", "repeats"),
    "weight_decay": ("optimiser", "weight_decay"),
}


def frozen_defaults(name: str, class_token: bool, dim: int | None = None) -> dict[str, Any]:
    """Return the options of a layer and its head on frozen features; ``NAME+cls`` has those of NAME if none of its own.

    Groups and queries, each of which pools a slice of the ``dim`` channels, become fewer where they do not divide them.

    Example:
        >>> frozen_defaults("ep", class_token=True), frozen_defaults("ep", class_token=True, dim=100)
        ({'queries': 32, 'rate': 100.0}, {'queries': 4, 'rate': 100.0})
    """
    known = PATCH_DEFAULTS if class_token else FROZEN_DEFAULTS
    found = dict(known.get(name, known.get(without_class_token(name)[0], {})))
    for slices in ("groups", "queries"):
        if dim is not None and slices in found:
            found[slices] = math.gcd(found[slices], dim)
    return found


def layer_options(chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of the layer itself among those of a head."""
    return {name: value for name, value in chosen.items() if name not in HEAD_OPTIONS}
