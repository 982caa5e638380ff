"""GSP against GAP on glyph collages: settings chosen on validation classes, then measured on test classes.

    python benchmarks/glyphs.py choose          a grid of settings, two seeds, validation classes alone
    python benchmarks/glyphs.py measure         `gspool train` as it is, three other seeds, test classes

Both resume: finished trainings are read from their folders. They share no data: the choice never uses a test class, and
the seeds of the measurement take no part in the choice.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from gspool.provenance import write_result

LEARNING_RATES = (2e-3, 4e-3, 8e-3, 1.6e-2)
# Epsilon, and the number of vectors that the warm start collects; 0 draws the prototypes at random.
PROTOTYPE_STARTS = ((5.0, 0), (10.0, 0), (20.0, 0), (40.0, 0), (10.0, 1024), (20.0, 1024))
CHOOSING_SEEDS, MEASURING_SEEDS = (10, 11), (0, 1, 2)
LIBRARIES = ("lightning-fabric", "pytorch-metric-learning", "matplotlib")


def grid(quick: bool) -> list[dict[str, Any]]:
    """Return the grid: learning rates for both layers, epsilon and warm start for GSP."""
    rates = LEARNING_RATES[2:3] if quick else LEARNING_RATES
    # All rows have the same columns, so that the result is a table.
    rows: list[dict[str, Any]] = [{"pooling": "gap", "lr": lr, "epsilon": "", "warm_start": ""} for lr in rates]
    starts = ((10.0, 0),) if quick else PROTOTYPE_STARTS
    rows += [
        {"pooling": "gsp", "lr": lr, "epsilon": epsilon, "warm_start": warm_start}
        for lr, (epsilon, warm_start) in itertools.product(rates, starts)
    ]
    return rows


def validation_figure(job: tuple[dict[str, Any], int, str, int]) -> float:
    """Train one row of the grid and return its best MAP@R on the validation classes, in percent."""
    from gspool.training.fit import fit
    from gspool.training.presets import changed, preset

    row, seed, work, steps = job
    options: dict[str, Any] = {}
    if row["pooling"] == "gsp":
        options = {"prototypes": 32, "mu": 0.25, "epsilon": row["epsilon"]}
        options |= {"warm_start": row["warm_start"]} if row["warm_start"] else {}
    config = changed(
        preset("glyphs"),
        model__pooling=row["pooling"],
        model__pooling_options=options,
        optimiser__lr=row["lr"],
        trainer__seed=seed,
        trainer__max_steps=steps,
        trainer__evaluate_every=min(100, steps),
        trainer__progress=False,
        trainer__threads=1,
        baseline=None,
    )
    name = "-".join(f"{key}={value}" for key, value in {**row, "seed": seed}.items())
    found = fit(config, Path(work) / name).validation
    assert found is not None
    print(f"{name}  validation MAP@R {100 * found:.2f}", flush=True)
    return 100 * found


def choose(arguments: argparse.Namespace) -> None:
    """Train the grid and write every row with its mean over the seeds."""
    import torch

    rows = grid(arguments.quick)
    jobs = [(row, seed, str(arguments.work), arguments.steps) for row in rows for seed in CHOOSING_SEEDS]
    with ProcessPoolExecutor(arguments.jobs, get_context("spawn")) as pool:
        figures = list(pool.map(validation_figure, jobs))
    for place, row in enumerate(rows):
        own = figures[place * len(CHOOSING_SEEDS) : (place + 1) * len(CHOOSING_SEEDS)]
        row["validation MAP@R"] = round(statistics.mean(own), 2)
        row |= {f"seed {seed}": round(each, 2) for seed, each in zip(CHOOSING_SEEDS, own, strict=True)}
    best = {
        name: max((row for row in rows if row["pooling"] == name), key=lambda row: row["validation MAP@R"])
        for name in ("gap", "gsp")
    }
    value = {"steps": arguments.steps, "rows": rows, "best": best}
    write_result(
        arguments.out or Path("results/glyphs_choice.json"),
        value,
        command="python benchmarks/glyphs.py choose",
        seeds=CHOOSING_SEEDS,
        libraries=LIBRARIES,
        device="cuda" if torch.cuda.is_available() else "cpu",
    )


def measure(arguments: argparse.Namespace) -> None:
    """Run `gspool train` for three seeds and write the metrics on the test classes."""
    import json

    names = {"gsp": ".", "gap": "baseline-gap"}
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for seed in MEASURING_SEEDS:
        folder = arguments.work / f"seed-{seed}"
        again = ["--resume", str(folder)] if folder.exists() else ["--output.folder", str(folder)]
        words = [sys.executable, "-m", "gspool.cli", "train", "--trainer.seed", str(seed), *again]
        if not (folder / "report.html").exists():
            subprocess.run(words, check=True, env=os.environ)
        for name, part in names.items():
            runs[name].append(json.loads((folder / part / "result.json").read_text()))
    value: dict[str, Any] = {"seeds": [], "summary": []}
    for place, seed in enumerate(MEASURING_SEEDS):
        for name in names:
            found = runs[name][place]
            value["seeds"].append({"pooling": name, "seed": seed, **percent(found["metrics"])})
    for name in names:
        columns = [percent(run["metrics"]) for run in runs[name]]
        row: dict[str, Any] = {"pooling": name}
        for metric in columns[0]:
            figures = [column[metric] for column in columns]
            row[metric] = round(statistics.mean(figures), 2)
            row[f"{metric} std"] = round(statistics.stdev(figures), 2)
        value["summary"].append(row)
    write_result(
        arguments.out or Path("results/glyphs.json"),
        value,
        command="python benchmarks/glyphs.py measure",
        seeds=MEASURING_SEEDS,
        libraries=LIBRARIES,
    )


def percent(metrics: dict[str, float]) -> dict[str, float]:
    return {name.upper(): round(100 * metrics[name], 2) for name in ("map@r", "p@1", "r@8")}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["choose", "measure"])
    parser.add_argument("--work", type=Path, default=Path("runs/glyphs"), help="where finished trainings are kept")
    parser.add_argument("--out", type=Path, help="the result file")
    parser.add_argument("--jobs", type=int, default=2, help="parallel trainings")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--quick", action="store_true", help="two rows of the grid, to try it out")
    given = parser.parse_args()
    {"choose": choose, "measure": measure}[given.part](given)
