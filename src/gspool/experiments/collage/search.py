"""Which setting matters: one setting at a time away from the paper's, judged on validation classes alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from gspool.experiments.collage.names import BACKBONE_NAMES
from gspool.experiments.collage.recipe import Training

LOSSES = ("c2", "pnca")
AS_THE_PAPER = "as the paper"
TOGETHER = "what helped, together"
# Names of variants by backbone: the paper's settings with it, what helped put together, what lies around the best.
OTHER_BACKBONE = BACKBONE_NAMES["preactivation-bottleneck"]
START = {"postactivation": AS_THE_PAPER, "preactivation-bottleneck": OTHER_BACKBONE}
TOGETHER_WITH = {flavour: f"{TOGETHER}, {name}" for flavour, name in BACKBONE_NAMES.items()}
AROUND = {flavour: f"around {name}, " for flavour, name in BACKBONE_NAMES.items()}


class Variant(NamedTuple):
    """A setting that differs from the paper's: which one, and how."""

    name: str
    setting: str
    changes: dict[str, Any]


# For every layer. The paper: lr 1e-3, ResNet20, 16 classes x 4 images, "default Adam" (no weight decay); nothing is
# said about features, proxies and the local embedding learn as fast as the rest, and labels may be super-classes (as
# here) or the classes inside them.
ANY_LAYER = (
    *(Variant(f"lr {shown}", "lr", {"lr": lr}) for shown, lr in (("1e-4", 1e-4), ("3e-4", 3e-4), ("1e-2", 1e-2))),
    Variant("standardised features", "features", {"features": "standardised"}),
    Variant("tokens of length 1", "features", {"features": "unit"}),
    Variant(OTHER_BACKBONE, "flavour", {"flavour": "preactivation-bottleneck"}),
    *(Variant(f"weight decay {decay:g}", "decay", {"weight_decay": decay}) for decay in (1e-4, 1e-3)),
    Variant("batches of 8 x 8", "sampler", {"classes_per_batch": 8}),
    Variant("batches of 4 x 16", "sampler", {"classes_per_batch": 4}),
    Variant("labels are sub-classes", "labels", {"labels": "sub-classes"}),
    Variant("embedding learns x0.1", "embedding rate", {"embedding_rate": 0.1}),
    Variant("embedding as drawn", "embedding rate", {"embedding_rate": 0.0}),
)
PROXIES = (Variant("proxies x100", "proxies", {"proxies": 100.0}),)
# For GSP alone. The paper: m = 128, mu = 0.2, epsilon = 10, embedded before pooling; the authors' reference starts by
# k-center. The figures of the paper are with the regularisation, at 0.5.
GSP_ONLY = (
    *(
        Variant(f"epsilon {epsilon:g}", "epsilon", {"options": {"epsilon": epsilon}})
        for epsilon in (2.0, 5.0, 20.0, 40.0, 80.0, 160.0)
    ),
    *(Variant(f"mu {mu:g}", "mu", {"options": {"mu": mu}}) for mu in (0.05, 0.1, 0.3)),
    *(Variant(f"{count} prototypes", "prototypes", {"options": {"prototypes": count}}) for count in (64, 256)),
    *(Variant(f"ZSR {weight:g}", "zsr", {"zsr": weight}) for weight in (0.1, 0.5)),
    Variant("embedded after pooling", "embedding", {"embedding": "after"}),
    Variant("random prototypes", "start", {"options": {"warm_start": 0}}),
)
# What is multiplied around the best setting so far, and by what, until nothing is better or the rounds are over.
AROUND_ANY = {"lr": (3.0, 1 / 3)}
AROUND_GSP = {"epsilon": (2.0, 0.5), "mu": (2.0, 0.5)}
ROUNDS = 2


def variants(pooling: str, loss: str) -> tuple[Variant, ...]:
    """List what is tried for a layer and a loss.

    Example:
        >>> len(variants("gap", "c2")), len(variants("gsp", "pnca"))
        (13, 29)
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


def combined(
    pooling: str, loss: str, validation: Mapping[str, float], seed: int, leave: tuple[str, ...] = (), **usual: Any
) -> Training | None:
    """Join the best value of every setting that beat the paper's on validation, but for those to leave.

    None where none did.

    Example:
        >>> combined("gap", "c2", {"as the paper": 0.1, "lr 1e-4": 0.2, "lr 1e-2": 0.3}, seed=0).lr
        0.01
    """
    helped: dict[str, Variant] = {}
    for each in variants(pooling, loss):
        reached = validation.get(each.name, -1.0)
        better_than = validation[helped[each.setting].name] if each.setting in helped else validation[AS_THE_PAPER]
        if reached > better_than and each.setting not in leave:
            helped[each.setting] = each
    if not helped:
        return None
    return changed(Training(pooling, loss, seed, **usual), *(each.changes for each in helped.values()))


def around(training: Training) -> dict[str, Training]:
    """Give what lies around a training: one setting multiplied or divided at a time.

    Example:
        >>> {name: each.lr for name, each in around(Training("gap", "c2", lr=0.5)).items()}
        {'lr 1.5': 1.5, 'lr 0.167': 0.16666666666666666}
        >>> list(around(Training("gsp", "c2")))[2:]
        ['epsilon 20', 'epsilon 5', 'mu 0.4', 'mu 0.1']
    """
    near = {}
    for factor in AROUND_ANY["lr"]:
        near[f"lr {training.lr * factor:.3g}"] = changed(training, {"lr": training.lr * factor})
    if training.pooling == "gsp":
        for name, factors in AROUND_GSP.items():
            for factor in factors:
                value = training.layer_options[name] * factor
                near[f"{name} {value:.3g}"] = changed(training, {"options": {name: value}})
    return near
