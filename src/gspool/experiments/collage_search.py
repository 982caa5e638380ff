"""Settings of the collage study beyond the paper's, chosen on validation classes: a search, and other heads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from gspool.experiments.cifar import FLAVOURS
from gspool.experiments.collage_training import ZSR, Training
from gspool.experiments.experiment import Record
from gspool.experiments.tables import cell, markdown_table

LOSSES = {"c2": "C2", "pnca": "PNCA"}
BACKBONE_NAMES = {
    "postactivation": "ResNet20 (post-activation)",
    "preactivation-bottleneck": "ResNet20 (pre-activation)",
}


class Variant(NamedTuple):
    """One setting that differs from the paper's."""

    name: str
    setting: str
    changes: dict[str, Any]


MOST_MOVED = 10
AS_THE_PAPER = "as the paper"
OTHER_BACKBONE = BACKBONE_NAMES["preactivation-bottleneck"]
START = {"postactivation": AS_THE_PAPER, "preactivation-bottleneck": OTHER_BACKBONE}
TOGETHER = {flavour: f"what helped, together, {name}" for flavour, name in BACKBONE_NAMES.items()}
AROUND = {flavour: f"around {name}, " for flavour, name in BACKBONE_NAMES.items()}
# The paper: lr 1e-3, 16 classes x 4 images, no weight decay. It does not say how features are scaled, how fast proxies
# and the local embedding learn, nor whether labels are super-classes.
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
GSP_ONLY = (
    *(Variant(f"epsilon {e:g}", "epsilon", {"options": {"epsilon": e}}) for e in (2.0, 5.0, 20.0, 40.0, 80.0, 160.0)),
    *(Variant(f"mu {mu:g}", "mu", {"options": {"mu": mu}}) for mu in (0.05, 0.1, 0.3)),
    *(Variant(f"{count} prototypes", "prototypes", {"options": {"prototypes": count}}) for count in (64, 256)),
    *(Variant(f"ZSR {weight:g}", "zsr", {"zsr": weight}) for weight in (0.1, 0.5)),
    Variant("embedded after pooling", "embedding", {"embedding": "after"}),
    Variant("random prototypes", "start", {"options": {"warm_start": 0}}),
)
ROUNDS = 2
SEARCHED = tuple((pooling, loss) for pooling in ("gap", "gsp") for loss in LOSSES)

# By pooling, loss and name of the variant.
Key = tuple[str, str, str]
Variants = dict[Key, Training]
Figures = Mapping[Key, Mapping[str, Any]]


def variants(pooling: str, loss: str) -> tuple[Variant, ...]:
    """Return the single settings to try for a layer and a loss."""
    return (*ANY_LAYER, *(PROXIES if loss == "pnca" else ()), *(GSP_ONLY if pooling == "gsp" else ()))


def changed(training: Training, *changes: Mapping[str, Any]) -> Training:
    """Apply changes in order; options of the layer are merged.

    Example:
        >>> changed(Training("gsp", "c2", options={"mu": 0.1}), {"lr": 0.1}, {"options": {"epsilon": 5.0}}).options
        {'mu': 0.1, 'epsilon': 5.0}
    """
    for change in changes:
        options = {**training.options, **change.get("options", {})}
        training = replace(training, **{**change, "options": options})
    return training


def single_variants(**usual: Any) -> Variants:
    """Return the first stage of the search: the paper's settings, and one setting at a time away from them."""
    found: Variants = {}
    for pooling, loss in SEARCHED:
        start = Training(pooling, loss, **usual)
        found[pooling, loss, AS_THE_PAPER] = start
        for variant in variants(pooling, loss):
            found[pooling, loss, variant.name] = changed(start, variant.changes)
    return found


def search(
    train: Callable[[Variants], Figures], first: Variants, rounds: int = ROUNDS
) -> tuple[Variants, dict[Key, tuple[str, Training]]]:
    """Search settings by validation: single changes, all that helped together, then neighbours of the best.

    Returns:
        All variants tried, and the best by (pooling, loss, flavour) with its name. Backbones are searched apart.
    """
    tried, found = dict(first), dict(train(first))
    near = [partial(_neighbours, number) for number in range(1, rounds + 1)]
    stages: list[Callable[[Variants, Figures], Variants]] = [_together, *near]
    for stage in stages:
        more = stage(tried, found)
        tried |= more
        found |= train(more)
    return {key: training for key, training in tried.items() if key in found}, best_of(tried, found)


def _together(tried: Variants, found: Figures) -> Variants:
    """Join the best value of every setting that beat the paper's, with each backbone."""
    joined: Variants = {}
    for pooling, loss in SEARCHED:
        reached = {key[2]: figures["validation"] for key, figures in found.items() if key[:2] == (pooling, loss)}
        helped: dict[str, Variant] = {}
        for each in variants(pooling, loss) if AS_THE_PAPER in reached else ():
            beaten = helped[each.setting].name if each.setting in helped else AS_THE_PAPER
            if each.setting != "flavour" and each.name in reached and reached[each.name] > reached[beaten]:
                helped[each.setting] = each
        if helped:
            training = changed(tried[pooling, loss, AS_THE_PAPER], *(each.changes for each in helped.values()))
            for flavour in FLAVOURS:
                joined[pooling, loss, TOGETHER[flavour]] = replace(training, flavour=flavour)
    return joined


def _neighbours(number: int, tried: Variants, found: Figures) -> Variants:
    """Return the untried neighbours of the best training of every layer, loss and backbone."""
    done = [training for key, training in tried.items() if key in found]
    return {
        (pooling, loss, f"{AROUND[flavour]}round {number}: {name}"): training
        for (pooling, loss, flavour), (_, best) in best_of(tried, found).items()
        for name, training in neighbours(best).items()
        if training not in done
    }


def neighbours(training: Training) -> dict[str, Training]:
    """Return trainings with one setting multiplied or divided."""
    near = {f"lr {training.lr * by:.3g}": replace(training, lr=training.lr * by) for by in (3.0, 1 / 3)}
    for name in ("epsilon", "mu") if training.pooling == "gsp" else ():
        for by in (2.0, 0.5):
            value = training.layer_options[name] * by
            near[f"{name} {value:.3g}"] = changed(training, {"options": {name: value}})
    return near


def best_of(tried: Variants, found: Figures) -> dict[Key, tuple[str, Training]]:
    """Return the best variant by validation for each (pooling, loss, flavour), with its name."""
    best: dict[Key, tuple[str, Training]] = {}
    for (pooling, loss, name), training in tried.items():
        if (pooling, loss, name) in found:
            place = (pooling, loss, str(training.flavour))
            reached = found[pooling, loss, name]["validation"]
            if place not in best or reached > found[pooling, loss, best[place][0]]["validation"]:
                best[place] = (name, training)
    return best


def tuned_name(row: str, flavour: str) -> str:
    """Name a tuned row: the backbone is added where it is not the usual one."""
    return row if flavour == FLAVOURS[0] else f"{row}, {BACKBONE_NAMES[flavour]}"


def _reached(record: Record) -> dict[tuple[str, str, str], float]:
    return {(row["pooling"], row["loss"], row["variant"]): row["validation"] for row in record["value"]["search"]}


def search_table(loss: str, record: Record) -> str:
    """Write the single settings that moved GSP most on validation, and what they did to GAP."""
    reached = _reached(record)

    def moved(pooling: str) -> dict[str, float]:
        names = [each.name for each in variants(pooling, loss) if (pooling, loss, each.name) in reached]
        start = reached.get((pooling, loss, AS_THE_PAPER))
        return {} if start is None else {name: reached[pooling, loss, name] - start for name in names}

    gap, gsp = moved("gap"), moved("gsp")
    rows = [
        {
            "setting": name,
            "GSP, validation": f"{reached['gsp', loss, name]:.2f}",
            "GSP, points": f"{gsp[name]:+.2f}",
            "GAP, points": cell(gap.get(name), "+.2f"),
        }
        for name in sorted(gsp, key=lambda name: -abs(gsp[name]))[:MOST_MOVED]
    ]
    return markdown_table(rows, text_columns=1) if rows else "not run"


def best_table(record: Record) -> str:
    """Write the best validation of each layer, loss and backbone, the stages before it, and its settings."""
    reached, value = _reached(record), record["value"]
    rows = []
    for place, name in value["best"].items():
        pooling, loss, flavour = place.split()
        start, together, best = (
            reached.get((pooling, loss, each)) for each in (START[flavour], TOGETHER[flavour], name)
        )
        near = [key for key in reached if key[:2] == (pooling, loss) and key[2].startswith(AROUND[flavour])]
        rows.append(
            {
                "layer, loss, backbone": tuned_name(f"{pooling} {loss}".upper(), flavour),
                "the paper's settings": start,
                "what helped, together": together,
                "neighbours tried": len(near),
                "best": best,
                "settings of the best": settings_in_short(value["best_settings"][place]) or "the paper's",
            }
        )
    return markdown_table(rows, ".2f", text_columns=1) if rows else "not run"


# Symbols of the paper; other settings keep their names.
SYMBOLS = {"zsr": "lambda", "prototypes": "m", "proxies": "rate of proxies x", "embedding_rate": "rate of embedding x"}


def settings_in_short(asked: Mapping[str, Any]) -> str:
    """List the settings of a training that are not the paper's, without backbone and length.

    Example:
        >>> settings_in_short(Training("gsp", "c2", lr=0.00030000000000000003, options={"epsilon": 40.0}).asked())
        'lambda 0, lr 0.0003, epsilon 40'
    """
    training = Training(**asked)
    usual = Training(training.pooling, training.loss, zsr=ZSR if training.pooling == "gsp" else 0.0)
    plain, found = ({**vars(each), **each.layer_options} for each in (usual, training))
    return ", ".join(
        f"{SYMBOLS.get(name, name.replace('_', ' '))} {f'{value:g}' if isinstance(value, float) else value}"
        for name, value in found.items()
        if name not in ("options", "flavour", "seed", "epochs", "patience") and value != plain[name]
    )


HEADS_FILE = "collage_heads"
# Heads of the frozen study, not in the paper: they start as the frozen feature with prototypes by k-means, at the
# settings that were chosen on CUB (docs/frozen_study.md).
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
# Those after which the whole ResNet20 is tuned: one learning rate for the whole head is too low for the queries of EP.
TUNED_HEADS = ("GAP", "DeLF", "GSP", "GSP sharp", "GeMean+GSP")
# Names of the rows, networks that are tuned last.
HEAD_ROWS = (*HEADS, *(f"{name}, head first" for name in TUNED_HEADS))
# The paper's learning rate, a lower one, and what the search found to help all layers.
HEAD_TRIES = (
    {"lr": 1e-3},
    {"lr": 3e-4},
    {"lr": 3e-4, "embedding_rate": 0.1, "labels": "sub-classes", "proxies": 100.0},
)


def head_tries(seed: int, usual: Mapping[str, Any], fine_tuned_epochs: int) -> dict[tuple[str, str], list[Training]]:
    """Return the tries of every row and loss with one seed; ``usual`` is their length with a frozen backbone."""
    tries = {}
    for row in HEAD_ROWS:
        name, _, tuned = row.partition(", ")
        pooling, changes = HEADS[name]
        length = {**usual, "backbone": tuned, "epochs": fine_tuned_epochs} if tuned else usual
        for loss in LOSSES:
            start = changed(Training(pooling, loss, seed, start="frozen"), length, changes)
            tries[row, loss] = [changed(start, each) for each in HEAD_TRIES]
    return tries
