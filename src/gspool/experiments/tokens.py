"""The synthetic study: bags of tokens, half of them background, pooled by GAP and by GSP (Sec. 5.1, Figure 3 a).

16 classes of 4 tokens each and 4 background tokens that all classes share; tokens are learned. Paper: the convex hulls
of the classes overlap with GAP and lie apart with GSP. Ours: results/tokens.json, docs/images/tokens.png.

    gspool reproduce tokens             # one CPU core, 10 minutes
    gspool reproduce tokens --quick     # a few seconds
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from gspool.experiments.crew import told_when_stopped
from gspool.experiments.experiment import Experiment, RunOptions
from gspool.experiments.kept_seeds import seeds_to_write, seeds_unfinished, with_missing_seeds
from gspool.experiments.ledger import Ledger
from gspool.experiments.report import section
from gspool.experiments.tokens_hulls import hull_overlap
from gspool.experiments.tokens_picture import draw
from gspool.experiments.tokens_section import PAIRS, headlines, seen, written
from gspool.experiments.tokens_training import TokenSettings, train_tokens
from gspool.provenance import known_origin, origin_here, write_result

SEEDS = (0, 1, 2, 3, 4, 5)
LAYERS = ("gap", "gsp")


def run(options: RunOptions) -> None:
    """Train both layers with every seed, write the figures, draw the seed that GSP does middling well with.

    Raises:
        ValueError: if the result there has seeds that would be dropped.
    """
    asked = options.seeds or (SEEDS[:1] if options.quick else SEEDS)
    usual = (
        TokenSettings(epochs=2, evaluate_every=1, samples_per_class=4, prototypes=8)
        if options.quick
        else TokenSettings()
    )
    here = origin_here(libraries=("matplotlib", "pytorch-metric-learning", "scipy"))
    ledger = Ledger(options.work / "tokens" / "trainings.jsonl", here)
    path = options.results / "tokens.json"

    def settings_of(layer: str, seed: int) -> TokenSettings:
        return replace(usual, pooling=layer, seed=seed)

    def held(seed: int) -> bool:
        return all(ledger.get(asdict(settings_of(layer, seed))) is not None for layer in LAYERS)

    seeds = seeds_to_write(path, asked, held)
    trainings = {(layer, seed): settings_of(layer, seed) for seed in seeds for layer in LAYERS}
    missing = {key: each for key, each in trainings.items() if ledger.get(asdict(each)) is None}
    kept = 0
    with told_when_stopped(lambda: kept, len(missing)):
        for (layer, seed), settings in missing.items():
            figures = trained(settings)
            ledger.put(asdict(settings), figures)
            kept += 1
            print(f"{layer} seed {seed}: {_told(figures)}", flush=True)
    found: dict[tuple[str, int], Any] = {key: ledger.get(asdict(each)) for key, each in trainings.items()}
    picture = options.images / "tokens.png"
    shown = middle_seed({seed: found["gsp", seed]["map@r"] for seed in seeds})
    draw({layer: found[layer, shown] for layer in LAYERS}, picture)
    write_result(
        path,
        {
            "settings": {name: value for name, value in asdict(usual).items() if name not in ("pooling", "seed")},
            "rows": [summary(layer, {seed: found[layer, seed] for seed in seeds}) for layer in LAYERS],
            "shown_seed": shown,
        },
        command=EXPERIMENT.command(replace(options, seeds=seeds) if options.seeds else options),
        seeds=seeds,
        origins=ledger.origins(known_origin(path, here), map(asdict, trainings.values())),
    )


def _told(figures: Mapping[str, Any]) -> str:
    shown = f"MAP@R {100 * figures['map@r']:.1f}, {figures['epochs']} epochs"
    return f"{shown}, weight on background {figures['on_background']:.2f}"


def middle_seed(figures: Mapping[int, float]) -> int:
    """Give the seed whose figure is the median, the lower of two.

    Example:
        >>> middle_seed({0: 0.9, 1: 0.7, 2: 0.8, 3: 0.75})
        3
    """
    return sorted(figures, key=lambda seed: figures[seed])[(len(figures) - 1) // 2]


def trained(settings: TokenSettings) -> dict[str, Any]:
    """Train once and keep what the table and the picture need, as plain numbers."""
    outcome = train_tokens(settings)
    overlap = hull_overlap(outcome.pooled.double().numpy(), outcome.labels.numpy())
    return {
        "map@r": outcome.map_at_r,
        "p@1": outcome.p_at_1,
        "epochs": outcome.epochs,
        "on_background": outcome.background_weight,
        "overlapping_pairs": overlap.pairs,
        "strangers_inside": overlap.strangers,
        "curve": [round(value, 4) for value in outcome.curve],
        "tokens": _rounded(outcome.tokens.tolist()),
        "pooled": _rounded(outcome.pooled.tolist()),
        "labels": outcome.labels.tolist(),
    }


def _rounded(rows: list[list[float]]) -> list[list[float]]:
    return [[round(value, 5) for value in row] for row in rows]


def summary(layer: str, runs: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    """Average the figures of one layer over its seeds, and keep those of each seed that a mean may hide."""
    each = runs.values()
    values = [100 * run["map@r"] for run in each]
    return {
        "layer": layer.upper(),
        "MAP@R": round(mean(values), 2),
        "std": round(stdev(values), 2) if len(values) > 1 else None,
        "P@1": round(100 * mean(run["p@1"] for run in each), 2),
        PAIRS: round(mean(run["overlapping_pairs"] for run in each), 1),
        "seeds without overlap": f"{sum(not run['overlapping_pairs'] for run in each)} of {len(runs)}",
        "samples inside another hull, percent": round(100 * mean(run["strangers_inside"] for run in each), 1),
        "weight on background": round(mean(run["on_background"] for run in each), 3),
        "epochs": round(mean(run["epochs"] for run in each)),
        "by_seed": {
            str(seed): {
                "MAP@R": round(100 * run["map@r"], 2),
                PAIRS: run["overlapping_pairs"],
                "epochs": run["epochs"],
            }
            for seed, run in runs.items()
        },
    }


def render(results: Path) -> str:
    """Write the section."""
    command = EXPERIMENT.command()
    return section(
        results, "tokens", lambda record: with_missing_seeds(written(record), record["seeds"], SEEDS, command)
    )


EXPERIMENT = Experiment(
    name="tokens",
    promise="bags of tokens with a shared background: class hulls overlap with GAP and lie apart with GSP",
    shows="Figure 3 (a)",
    cost="10 minutes on one CPU core",
    files=("tokens",),
    run=run,
    render=render,
    unfinished=lambda results: seeds_unfinished(results / "tokens.json", SEEDS),
    headlines=headlines,
    verdict=lambda record: seen(record["value"]),
    on_gpu=False,
)
