"""Which unstated setting matters: one setting at a time away from the paper's, judged on validation classes alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from gspool.experiments.collage.training import Training

LOSSES = ("c2", "pnca")
AS_THE_PAPER = "as the paper"
TOGETHER = "what helped, together"


class Variant(NamedTuple):
    """A setting that differs from the paper's: which one, and how."""

    name: str
    setting: str
    changes: dict[str, Any]


# For every layer. The paper: lr 1e-3, ResNet20, nothing said about features; proxies learn as fast as the rest.
ANY_LAYER = (
    Variant("lr 1e-4", "lr", {"lr": 1e-4}),
    Variant("lr 1e-2", "lr", {"lr": 1e-2}),
    Variant("standardised features", "features", {"features": "standardised"}),
    Variant("tokens of length 1", "features", {"features": "unit"}),
    Variant("pre-activation ResNet20", "flavour", {"flavour": "preactivation-bottleneck"}),
)
PROXIES = (Variant("proxies x100", "proxies", {"proxies": 100.0}),)
# For GSP alone. The paper: m = 128, mu = 0.2, epsilon = 10; the authors' reference starts by k-center.
GSP_ONLY = (
    *(
        Variant(f"epsilon {epsilon:g}", "epsilon", {"options": {"epsilon": epsilon}})
        for epsilon in (2.0, 5.0, 20.0, 40.0)
    ),
    *(Variant(f"mu {mu:g}", "mu", {"options": {"mu": mu}}) for mu in (0.1, 0.3)),
    Variant("random prototypes", "start", {"options": {"warm_start": 0}}),
)


def variants(pooling: str, loss: str) -> tuple[Variant, ...]:
    """List what is tried for a layer and a loss.

    Example:
        >>> len(variants("gap", "c2")), len(variants("gsp", "pnca"))
        (5, 13)
    """
    return (*ANY_LAYER, *(PROXIES if loss == "pnca" else ()), *(GSP_ONLY if pooling == "gsp" else ()))


def changed(training: Training, *changes: Mapping[str, Any]) -> Training:
    """Apply changes one after the other; options of the layer are joined.

    Example:
        >>> changed(Training("gsp", "c2", options={"mu": 0.1}), {"lr": 0.1}, {"options": {"epsilon": 5.0}}).options
        {'mu': 0.1, 'epsilon': 5.0}
    """
    for change in changes:
        options = {**training.options, **change.get("options", {})}
        training = replace(training, **{**change, "options": options})
    return training


def search_trainings(pooling: str, loss: str, seed: int, **usual: Any) -> dict[str, Training]:
    """Give the trainings of the search by the names of their variants, the paper's settings first."""
    start = Training(pooling, loss, seed, **usual)
    return {AS_THE_PAPER: start, **{each.name: changed(start, each.changes) for each in variants(pooling, loss)}}


def combined(pooling: str, loss: str, validation: Mapping[str, float], seed: int, **usual: Any) -> Training | None:
    """Join the best value of every setting that beat the paper's on validation; None where none did.

    Example:
        >>> combined("gap", "c2", {"as the paper": 0.1, "lr 1e-4": 0.2, "lr 1e-2": 0.3}, seed=0).lr
        0.01
    """
    helped: dict[str, Variant] = {}
    for each in variants(pooling, loss):
        reached = validation.get(each.name, -1.0)
        better_than = validation[helped[each.setting].name] if each.setting in helped else validation[AS_THE_PAPER]
        if reached > better_than:
            helped[each.setting] = each
    if not helped:
        return None
    return changed(Training(pooling, loss, seed, **usual), *(each.changes for each in helped.values()))
