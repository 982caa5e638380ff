"""The search at work: one setting at a time, what helped together, then around the best; for both backbones apart."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from gspool.experiments.collage.backbones import FLAVOURS
from gspool.experiments.collage.recipe import Training
from gspool.experiments.collage.search import (
    AROUND,
    AS_THE_PAPER,
    LOSSES,
    ROUNDS,
    TOGETHER,
    TOGETHER_WITH,
    around,
    changed,
    combined,
    search_trainings,
)
from gspool.experiments.collage.study import Study

SEARCH_SEED = 0
QUICK = (AS_THE_PAPER, "lr 1e-2")
PAIRS = tuple((pooling, loss) for pooling in ("gap", "gsp") for loss in LOSSES)
# (pooling, loss, name of the variant)
Variants = dict[tuple[str, str, str], Training]


class Searched(NamedTuple):
    """Figures of every variant by (pooling, loss, variant); the best by (pooling, loss, flavour) on validation."""

    found: dict[tuple[str, str, str], dict[str, Any]]
    best: dict[tuple[str, str, str], tuple[str, Training]]


def first_variants(study: Study) -> Variants:
    """Give what is tried first: the paper's settings, and one setting at a time away from them."""
    return {
        (*pair, name): training
        for pair in PAIRS
        for name, training in search_trainings(*pair, SEARCH_SEED, **study.usual).items()
        if not study.options.quick or name in QUICK
    }


def search(study: Study) -> Searched:
    """Try variants for GAP and GSP on validation classes, then what helped together, then around the best.

    The paper says "3 stages, 3 blocks", which the pre-activation flavour is not; so the best is looked for with each
    backbone apart, and neither choice stands on the other's figures.
    """
    trainings = first_variants(study)
    found = study.train("search", trainings)
    together = joined(study, found)
    trainings |= together
    found |= study.train(TOGETHER, together)
    for number in range(1, 1 + (0 if study.options.quick else ROUNDS)):
        near = nearby(number, trainings, found)
        trainings |= near
        found |= study.train(f"round {number} around the best", near)
    return Searched(found, best_of(trainings, found))


def joined(study: Study, found: Mapping[tuple[str, str, str], Mapping[str, Any]]) -> Variants:
    """Put together what helped, for each layer, loss and backbone."""
    together: Variants = {}
    for pair in PAIRS:
        reached = {key[2]: each["validation"] for key, each in found.items() if key[:2] == pair}
        if AS_THE_PAPER not in reached:
            continue
        training = combined(*pair, reached, SEARCH_SEED, leave=("flavour",), **study.usual)
        if training is not None:
            for flavour in FLAVOURS:
                together[*pair, TOGETHER_WITH[flavour]] = changed(training, {"flavour": flavour})
    return together


def nearby(number: int, trainings: Variants, found: Mapping[tuple[str, str, str], Mapping[str, Any]]) -> Variants:
    """Give what lies around the best so far; nothing where that has been tried."""
    done = [training.asked() for key, training in trainings.items() if key in found]
    return {
        (pooling, loss, f"{AROUND[flavour]}round {number}: {name}"): training
        for (pooling, loss, flavour), (_, best) in best_of(trainings, found).items()
        for name, training in around(best).items()
        if training.asked() not in done
    }


def best_of(
    trainings: Variants, found: Mapping[tuple[str, str, str], Mapping[str, Any]]
) -> dict[tuple[str, str, str], tuple[str, Training]]:
    """Find the best variant by validation for each layer, loss and backbone."""
    best: dict[tuple[str, str, str], tuple[str, Training]] = {}
    for (pooling, loss, name), training, reached in _finished(trainings, found):
        place = (pooling, loss, str(training.flavour))
        if place not in best or reached > found[pooling, loss, best[place][0]]["validation"]:
            best[place] = (name, training)
    return best


def _finished(
    trainings: Variants, found: Mapping[tuple[str, str, str], Mapping[str, Any]]
) -> Iterator[tuple[tuple[str, str, str], Training, float]]:
    return ((key, training, found[key]["validation"]) for key, training in trainings.items() if key in found)
