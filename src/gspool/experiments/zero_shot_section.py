"""The section about zero-shot prediction: histograms, table, what the regularisation brings and what it costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gspool.experiments.experiment import Verdict, mean_and_deviation
from gspool.experiments.paired import in_words, judged, seed_difference
from gspool.experiments.pictured import pictured
from gspool.experiments.report import table
from gspool.experiments.zero_shot_training import KINDS


def paired_gains(runs: Mapping[str, Mapping[str, Any]], name: str, seeds: Sequence[int]) -> list[float]:
    """Give what the regularisation adds with every seed, in points.

    Example:
        >>> paired_gains({"with, seed 3": {"map_l2": 0.5}, "without, seed 3": {"map_l2": 0.25}}, "map_l2", [3])
        [25.0]
    """
    return [100 * (runs[f"with, seed {seed}"][name] - runs[f"without, seed {seed}"][name]) for seed in seeds]


def written(record: dict[str, Any]) -> str:
    """Show the histograms, how it was done, whether the promise is kept and at what cost, and the table."""
    return "\n\n".join((_picture(record), _done(record), compared(record), _table(record["value"]["rows"])))


def _picture(record: dict[str, Any]) -> str:
    return pictured(
        "zero_shot.png",
        "Histograms of the attributes of the ten classes, without and with regularisation",
        "A row a class of CIFAR-10, a column a prototype; the brighter, the larger its share of the attributes. Shown "
        f"is seed {record['seeds'][0]}, the first.",
    )


def _done(record: dict[str, Any]) -> str:
    value = record["value"]
    settings = value["settings"]
    chance = value["rows"][0]["chance"]
    images = "all training images" if settings["images"] is None else f"{settings['images']:,} training images a class"
    seeds = record["seeds"]
    in_row = len(seeds) > 2 and [*seeds] == [*range(seeds[0], seeds[-1] + 1)]
    named = f"{seeds[0]} to {seeds[-1]}" if in_row else ", ".join(map(str, seeds))
    averaged = f"mean ± std over seeds {named}" if len(seeds) > 1 else f"seed {seeds[0]} alone"
    return (
        f"{settings['prototypes']} prototypes on CIFAR-10, ProxyNCA++, {settings['steps']:,} steps on {images} of "
        f"a head on the frozen ResNet20 of the collage study ({100 * value['backbone']['accuracy']:.1f} % right on "
        f"CIFAR-100), mu = {settings['mu']:g}, epsilon = {settings['epsilon']:g}, lambda = {value['zsr']:g}: the "
        "paper names the loss and the prototypes, not the rest. A linear map is fitted from the attributes of five "
        "classes to their mean embeddings, and predicts those of the other five; 1,000 random splits. In percent, "
        f"{averaged}; guessing is right in {chance:.0f} % and has a "
        f"MAP of {chance_of_map(chance):.1f} %, the mean of 1 / rank over the classes to choose from. A smaller design "
        "before this one had left the gain within two errors ([decisions](decisions.md))."
    )


def chance_of_map(chance: float) -> float:
    """Give the MAP of guessing, in percent, from how often guessing is right.

    One class of n is the right one, so the average precision of a ranking is 1 / rank, and every rank is as likely.

    Example:
        >>> round(chance_of_map(20.0), 1)
        45.7
    """
    classes = round(100 / chance)
    return 100 * sum(1 / rank for rank in range(1, classes + 1)) / classes


def changes(record: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Give what the regularisation changes seed by seed, in points: MAP of the predictions, MAP@R of the embedding."""
    names = {kind: f"map_{kind}" for kind in KINDS} | {"embedding": "map@r"}
    runs, seeds = record["value"]["runs"], record["seeds"]
    return {key: seed_difference(paired_gains(runs, name, seeds)) for key, name in names.items()}


def compared(record: dict[str, Any]) -> str:
    """Say what the regularisation brings to the predictions, whether that is the paper's gain, and what it costs."""
    found = changes(record)
    brought = "; ".join(
        f"{in_words(each, 1)} points of MAP by {kind}, {each['ahead']} of {each['pairs']} seeds ahead"
        for kind, each in ((kind, found[kind]) for kind in KINDS)
    )
    said = {
        "yes": "so do we",
        "partly": "we do in part",
        "no": "we do not",
        "cannot tell": "here it cannot be told from 0",
    }[judged([found[kind] for kind in KINDS])]
    return f"The regularisation changes, seed by seed: {brought}. The paper shows a clear gain; {said}. {cost(found)}"


def cost(found: Mapping[str, dict[str, Any]]) -> str:
    """Say what becomes of MAP@R of the embedding.

    Example:
        >>> cost({"embedding": seed_difference([-3.0, -3.5])})
        'It costs 3.2 points of MAP@R of the embedding (2 of 2 seeds).'
    """
    each = found["embedding"]
    fallen = each["pairs"] - each["ahead"]
    if each["mean"] < 0:
        return f"It costs {-each['mean']:.1f} points of MAP@R of the embedding ({fallen} of {each['pairs']} seeds)."
    return f"MAP@R of the embedding does not suffer: {in_words(each, 1)} points."


def seen(record: dict[str, Any]) -> Verdict:
    """Judge the promise: predictions gain by both distances, beyond their intervals."""
    found = changes(record)
    gained = ", ".join(f"{in_words(found[kind], 1)} by {kind}" for kind in KINDS)
    holds = judged([found[kind] for kind in KINDS])
    return Verdict(holds, f"points of MAP of the predictions: {gained}; of MAP@R: {in_words(found['embedding'], 1)}")


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    shown = [
        {
            "regularisation": row["regularisation"],
            **{
                f"{name}, {kind}": mean_and_deviation(row[f"{name}, {kind}"], row[f"{name}, {kind}, std"], 1)
                for name in ("nearest is right", "MAP")
                for kind in KINDS
            },
            "MAP@R of the embedding": row["MAP@R of the embedding"],
        }
        for row in rows
    ]
    return table(shown, ".2f")
