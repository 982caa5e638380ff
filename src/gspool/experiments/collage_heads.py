"""Heads of the frozen study on Cifar Collage, every one tuned alike, and the whole network tuned after the head.

Not in the paper. Heads start as the frozen feature with prototypes by k-means, at the settings that were chosen on CUB
(docs/frozen.md). Each has three tries for each loss with the first seed, the best by validation is trained with every
seed. "head first" tunes the whole ResNet20 after the head alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from gspool.evaluation.statistics import seed_difference, with_interval
from gspool.executor.run_store import RunStore
from gspool.experiments.collage_search import LOSSES, changed
from gspool.experiments.collage_training import Training
from gspool.experiments.experiment import Record
from gspool.experiments.tables import markdown_table, mean_std, plus_minus
from gspool.provenance import write_result

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
# With C2 and PNCA; its GSP is with the regularisation.
PAPER = {"GAP": (8.09, 10.68), "DeLF": (11.44, 24.83), "GSP": (22.68, 27.61)}
# The paper's learning rate, a lower one, and what the search found to help all layers.
TRIES = (
    {"lr": 1e-3},
    {"lr": 3e-4},
    {"lr": 3e-4, "embedding_rate": 0.1, "labels": "sub-classes", "proxies": 100.0},
)
# Layer, backbone and loss.
Row = tuple[str, str, str]
Lookup = Callable[[Mapping[str, Any]], dict[str, Any] | None]


class Length(NamedTuple):
    """Passes over the collages at most, passes without a better validation, and passes of a backbone that learns."""

    epochs: int = 15
    patience: int = 6
    fine_tuned: int = 8


def rows_of(layers: Sequence[str] = ()) -> list[Row]:
    """Return the rows of the table, networks that are tuned last.

    Raises:
        ValueError: if a layer does not exist.
    """
    unknown = [name for name in layers if name not in HEADS]
    if unknown:
        raise ValueError(f"--layers are {', '.join(HEADS)}, got {', '.join(unknown)}")
    named = layers or [*HEADS]
    places = [("frozen", name) for name in named] + [(HEAD_FIRST, name) for name in named if name in TUNED]
    return [(name, backbone, loss) for backbone, name in places for loss in LOSSES]


def tries_of(row: Row, seed: int, length: Length) -> list[Training]:
    """Return the tries of a row with one seed."""
    name, backbone, loss = row
    pooling, changes = HEADS[name]
    epochs = length.epochs if backbone == "frozen" else length.fine_tuned
    usual = {"start": "frozen", "backbone": backbone, "epochs": epochs, "patience": length.patience}
    return [changed(Training(pooling, loss, seed), usual, changes, each) for each in TRIES]


def best_tries(rows: Sequence[Row], seed: int, length: Length, get: Lookup) -> dict[Row, Training]:
    """Return the finished try of every row that is best on validation classes with one seed."""
    best = {}
    for row in rows:
        reached = {
            place: found["validation"]
            for place, each in enumerate(tries_of(row, seed, length))
            if (found := get(each.asked())) is not None
        }
        if reached:
            best[row] = tries_of(row, seed, length)[max(reached, key=reached.__getitem__)]
    return best


def run_heads(
    train: Callable[[str, Mapping[Any, Training]], Any],
    store: RunStore,
    path: Path,
    layers: Sequence[str],
    seeds: Sequence[int],
    length: Length,
    command: str,
) -> None:
    """Make the tries with the first seed, then the best of every row with all seeds; write what is finished."""
    rows = rows_of(layers)
    train("tries", {(row, place): each for row in rows for place, each in enumerate(tries_of(row, seeds[0], length))})
    best = best_tries(rows, seeds[0], length, store.get)
    train("every seed", {(row, seed): replace(each, seed=seed) for row, each in best.items() for seed in seeds})
    # Those of earlier calls with other layers stay.
    runs = [run for run in store.runs() if run.asked.get("start") == "frozen"]
    if not runs:
        raise ValueError("time ran out before any training ended, nothing was written; give more --seconds")
    value = {**length._asdict(), "runs": [{"asked": run.asked, "found": run.found} for run in runs]}
    write_result(path, value, command=command, seeds=list(seeds), origins=[run.origin for run in runs])


def heads_table(record: Record) -> str:
    """Write every head with a frozen backbone and with one that is tuned after it, beside the paper's figure."""
    value, seeds = record["value"], record["seeds"]
    known = {json.dumps(run["asked"], sort_keys=True): run["found"] for run in value["runs"]}

    def get(asked: Mapping[str, Any]) -> dict[str, Any] | None:
        return known.get(json.dumps(dict(asked), sort_keys=True))

    length = Length(**{name: value[name] for name in Length._fields})
    best = best_tries(rows_of(), seeds[0], length, get)
    found = {
        row: {seed: each for seed in seeds if (each := get(replace(training, seed=seed).asked()))}
        for row, training in best.items()
    }
    lines = []
    for name, backbone in dict.fromkeys(row[:2] for row in best):
        line: dict[str, Any] = {"head": name, "backbone": backbone}
        for place, (loss, shown) in enumerate(LOSSES.items()):
            own, gap = (found.get((each, backbone, loss), {}) for each in (name, "GAP"))
            values = {seed: 100 * run["map@r"] for seed, run in own.items()}
            pairs = [values[seed] - 100 * gap[seed]["map@r"] for seed in values if seed in gap and name != "GAP"]
            shares = [run["on_object"] for run in own.values() if run["on_object"] is not None]
            line |= {
                shown: plus_minus(*mean_std([*values.values()])) if values else "",
                f"{shown}, paper": PAPER[name][place] if name in PAPER else None,
                f"{shown}, less GAP": with_interval(seed_difference(pairs)) if pairs else "",
                f"{shown}, on the object": fmean(shares) if shares else None,
                f"{shown}, seeds": len(values) or None,
            }
        lines.append(line)
    return markdown_table(lines, ".2f", text_columns=2) if lines else "not run"
