"""What the collage study trains: the tables at the paper's settings, what is trained at the best, how much in all."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gspool.experiments.collage.backbones import FLAVOURS
from gspool.experiments.collage.names import BACKBONES
from gspool.experiments.collage.recipe import ZSR, Training
from gspool.experiments.collage.rows import DISTILLED, FINE_TUNED, FINE_TUNING, find_row, table_trainings
from gspool.experiments.collage.search import LOSSES, ROUNDS, around, search_trainings
from gspool.experiments.collage.study import SEEDS, CollageSettings
from gspool.experiments.collage.tuning import PAIRS, SEARCH_SEED, Searched

# By row, loss and seed.
Trainings = dict[tuple[str, str, int], Training]
# Seconds, as `Training.cost` estimates them; where time is short, what takes longer waits for the rest.
LONG = 14.0


def paper_tables(seeds: tuple[int, ...], settings: CollageSettings) -> dict[str, Trainings]:
    """Give the trainings of the tables that wait for no search, by the name of the table.

    Example:
        >>> {name: len(each) for name, each in paper_tables((0, 1, 2), CollageSettings()).items()}
        {'frozen': 150, 'distilled': 12, 'fine_tuned': 24}
    """
    usual = {"epochs": settings.epochs, "patience": settings.patience}
    learning = {**FINE_TUNING, "epochs": settings.fine_tuned_epochs}
    return {
        "frozen": table_trainings(seeds, **usual),
        "distilled": row_trainings(DISTILLED, seeds, usual, {"data": "distilled"}),
        "fine_tuned": row_trainings(FINE_TUNED, seeds, usual, learning),
    }


def row_trainings(
    names: tuple[str, ...], seeds: tuple[int, ...], usual: Mapping[str, Any], changes: Mapping[str, Any]
) -> Trainings:
    """Give the trainings of some rows of the table, changed."""
    return {
        (row.name, loss, seed): Training(row.pooling, loss, seed, **{**usual, **row.changes, **changes})
        for row in map(find_row, names)
        for loss in LOSSES
        for seed in seeds
    }


def in_order(trainings: list[Training]) -> list[Training]:
    """Put first what a study cut short should have: every row once, then once more; the long ones after all others.

    Example:
        >>> [each.seed for each in in_order([Training("gap", "c2", seed) for seed in (2, 0, 1)])]
        [0, 1, 2]
    """
    return sorted(trainings, key=lambda each: (each.cost > LONG, each.seed, each.cost))


def tuned_trainings(seeds: tuple[int, ...], searched: Searched) -> Trainings:
    """Give GAP, GSP and GSP+ZSR with the best settings of the search for either backbone, for every seed.

    So that GSP is not first for want of others that were looked after, what is ahead of it at the paper's settings is
    trained with GSP's settings too.
    """
    found = {}
    for (pooling, loss, flavour), (_, training) in searched.best.items():
        rows = {"GAP": training} if pooling == "gap" else beside_gsp(training)
        for name, settings in rows.items():
            for seed in seeds:
                found[f"{name}{BACKBONES[flavour]}", loss, seed] = replace(settings, seed=seed)
    return found


def beside_gsp(training: Training) -> dict[str, Training]:
    """Give the rows that are trained with the best settings of GSP, as far as a layer has them.

    Example:
        >>> rows = beside_gsp(Training("gsp", "c2", lr=1e-4, options={"mu": 0.1}))
        >>> rows["DeLF"].lr, dict(rows["DeLF"].options), rows["GSP+ZSR"].zsr
        (0.0001, {}, 0.5)
    """
    return {
        "GSP": replace(training, zsr=0.0),
        "GSP+ZSR": replace(training, zsr=training.zsr or ZSR),
        "GeMean+GSP": replace(training, pooling="gemean+gsp", zsr=0.0),
        "DeLF": replace(training, pooling="delf", options={}, zsr=0.0),
    }


def most_trainings(seeds: tuple[int, ...] = SEEDS) -> int:
    """Count what a whole study makes at most; less where the search has tried what lies around its best before.

    Example:
        >>> most_trainings((0,)) < most_trainings((0, 1, 2))
        True
    """
    tables = [each for table in paper_tables(seeds, CollageSettings()).values() for each in table.values()]
    tried = [each for pair in PAIRS for each in search_trainings(*pair, SEARCH_SEED).values()]
    # The paper's settings are part of both.
    sure = {json.dumps(each.asked(), sort_keys=True) for each in [*tables, *tried]}
    starts = [Training(pooling, loss) for pooling, loss in PAIRS for _ in FLAVOURS]
    near = ROUNDS * sum(len(around(each)) for each in starts)
    # The best of the search is made already with its seed.
    best = len(seeds) * sum(1 if each.pooling == "gap" else len(beside_gsp(each)) for each in starts) - len(starts)
    return len(sure) + len(starts) + near + best
