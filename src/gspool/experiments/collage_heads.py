"""Heads of the frozen study on Cifar Collage, every one tuned alike, and the whole network tuned after the head.

Not in the paper. Heads start as the frozen feature with prototypes by k-means, at the settings that were chosen on CUB
(docs/frozen.md). Each has three tries for each loss with the first seed, the best by validation is trained with every
seed. "head first" tunes the whole ResNet20 after the head alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gspool.experiments.collage_search import LOSSES, changed
from gspool.experiments.collage_training import Training

FILE = "collage_heads"
HEADS: dict[str, tuple[str, dict[str, Any]]] = {
    "GAP": ("gap", {}),
    "DeLF": ("delf", {}),
    "EP": ("ep", {"options": {"queries": 8}, "rate": 30.0}),
    "ABMILP": ("abmilp", {}),
    "GSP": ("gsp", {"options": {"prototypes": 8, "mu": 0.05, "epsilon": 10.0, "warm_start": 0}}),
    "GSP sharp": ("gsp", {"options": {"prototypes": 64, "mu": 0.1, "epsilon": 20.0, "warm_start": 0}}),
    "GeMean+GSP": (
        "gemean+gsp",
        {"options": {"prototypes": 64, "mu": 0.1, "epsilon": 5.0, "keys": 128, "warm_start": 0}},
    ),
}
HEAD_FIRST = "head first"
# The first phase has one learning rate for the whole head, which is too low for the queries of EP.
TUNED = ("GAP", "DeLF", "GSP", "GSP sharp", "GeMean+GSP")
# Names of the rows, networks that are tuned last.
ROWS = (*HEADS, *(f"{name}, {HEAD_FIRST}" for name in TUNED))
# The paper's learning rate, a lower one, and what the search found to help all layers.
TRIES = (
    {"lr": 1e-3},
    {"lr": 3e-4},
    {"lr": 3e-4, "embedding_rate": 0.1, "labels": "sub-classes", "proxies": 100.0},
)


def head_tries(seed: int, usual: Mapping[str, Any], fine_tuned_epochs: int) -> dict[tuple[str, str], list[Training]]:
    """Return the tries of every row and loss with one seed; ``usual`` is their length with a frozen backbone."""
    tries = {}
    for row in ROWS:
        name, _, tuned = row.partition(", ")
        pooling, changes = HEADS[name]
        length = {**usual, "backbone": tuned, "epochs": fine_tuned_epochs} if tuned else usual
        for loss in LOSSES:
            start = changed(Training(pooling, loss, seed, start="frozen"), length, changes)
            tries[row, loss] = [changed(start, each) for each in TRIES]
    return tries
