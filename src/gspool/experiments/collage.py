"""Cifar Collage: an object of CIFAR-100 among three distractors, pooled by 21 layers (Figure 3 b, Supp. 2.2).

Classes of training, validation and test are disjoint. Paper: GAP 8.09 and GSP 22.68 MAP@R with the contrastive loss
(C2), 10.68 and 27.61 with ProxyNCA++ (PNCA). Ours: results/collage.json, docs/images/collage_table.png; the weights of
GSP over collages: docs/images/collage.png.

    gspool reproduce collage --root ~/data --device cuda --processes 14 --backend triton
    gspool reproduce collage --quick             # a stand-in for CIFAR-100, one minute

At most 392 trainings of a head on frozen feature maps, 24 of them of a whole ResNet20: the pooling table, the objects
alone, a fine-tuned backbone, a search of settings on validation classes, and a table at the best settings.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from statistics import fmean, stdev
from typing import Any

from gspool.executor.grid import run_grid
from gspool.executor.run_store import RunStore
from gspool.experiments.cifar_backbone import FLAVOURS, pretrain_missing
from gspool.experiments.cifar_stand_in import write_cifar100_stand_in
from gspool.experiments.collage_grid import (
    AS_THE_PAPER,
    LOSSES,
    ROUNDS,
    ZSR,
    Training,
    Trainings,
    paper_tables,
    search,
    single_variants,
    tuned_table,
)
from gspool.experiments.collage_plots import draw_bars, draw_weights, write_shown_weights
from gspool.experiments.collage_tables import TABLES, cells_of, paper_of
from gspool.experiments.collage_training import CollageWorker
from gspool.experiments.experiment import Experiment, Headline, Record, RunOptions
from gspool.experiments.seeds import missing_seeds, seeds_to_write
from gspool.experiments.tables import plus_minus
from gspool.provenance import write_result

SEEDS = (0, 1, 2)
SEARCH_SEED = 0
# The tables of the tiny version have these rows alone.
QUICK_ROWS = {"frozen": ("GAP", "GSP+ZSR"), "distilled": ("GAP",), "fine_tuned": ("GSP+ZSR",)}
QUICK_VARIANTS = (AS_THE_PAPER, "lr 1e-2")


@dataclass(frozen=True)
class CollageSettings:
    """Options of the collage study.

    Args:
        backend: how GSP is computed: "torch", or "triton" on a GPU; see gspool.functional.gsp_pool.
        epochs: passes over the collages at most.
        patience: passes without a better validation before a training stops.
        fine_tuned_epochs: passes at most where the backbone learns too.
    """

    backend: str = "torch"
    epochs: int = 15
    patience: int = 6
    fine_tuned_epochs: int = 8


class CollageRun:
    """A run of the study: its options, its finished trainings, its clock."""

    def __init__(self, options: RunOptions) -> None:
        self.options = options
        chosen = options.settings or CollageSettings()
        self.settings = replace(chosen, epochs=1, patience=1, fine_tuned_epochs=1) if options.quick else chosen
        self.root = write_cifar100_stand_in(options.work / "stand-in", 1, 1) if options.quick else options.root
        self.folder = options.work / "collage"
        libraries = ("pytorch-metric-learning",)
        self.store = RunStore(self.folder / "runs.jsonl", device=options.device, libraries=libraries)
        self.started, self.failures = time.monotonic(), list[str]()
        self.worker = partial(CollageWorker, self.root, self.folder, options.device, self.settings.backend)

    def tables(self, seeds: tuple[int, ...]) -> dict[str, Trainings]:
        """Return the trainings of the tables at the paper's settings; a few of them for the tiny version."""
        settings = self.settings
        tables = paper_tables(seeds, settings.epochs, settings.patience, settings.fine_tuned_epochs)
        if not self.options.quick:
            return tables
        return {
            name: {key: each for key, each in table.items() if key[0] in QUICK_ROWS[name] and key[1] == "pnca"}
            for name, table in tables.items()
        }

    def variants(self) -> dict[tuple[str, str, str], Training]:
        """Return the first stage of the search."""
        found = single_variants(seed=SEARCH_SEED, epochs=self.settings.epochs, patience=self.settings.patience)
        quick = self.options.quick
        return {key: each for key, each in found.items() if not quick or key[2] in QUICK_VARIANTS}

    @property
    def seconds_left(self) -> float | None:
        """Seconds until the time limit, 0 after it; None where there is none."""
        limit = self.options.seconds
        return max(limit - (time.monotonic() - self.started), 0.0) if limit else None

    def train(self, what: str, trainings: Mapping[Any, Training]) -> dict[Any, dict[str, Any]]:
        """Make what is missing while there is time, and return what is finished by the same keys.

        Failures are kept for the end, so that the rest is made and written first.
        """
        # Every row once before any row twice, and fine-tuning last; one backbone after the other, for its maps.
        order = sorted(
            trainings.values(),
            key=lambda each: (each.backbone == "fine-tuned", each.seed, each.data, each.flavour),
        )
        # The paper's settings are part of a table and of the search.
        once = {str(each.asked()): each.asked() for each in order}
        missing = [asked for asked in once.values() if self.store.get(asked) is None]
        print(f"{what}: {len(once)} trainings, {len(missing)} of them missing", flush=True)
        left = self.seconds_left
        if missing and left != 0:
            try:
                run_grid(self.store, missing, self.worker, self.options.executor, left or 0.0)
            except RuntimeError as failed:
                self.failures.append(f"{what}: {failed}")
        return self.finished(trainings)

    def finished(self, trainings: Mapping[Any, Training]) -> dict[Any, dict[str, Any]]:
        """Return what is finished, by the same keys."""
        found = {key: self.store.get(training.asked()) for key, training in trainings.items()}
        return {key: each for key, each in found.items() if each is not None}


def run(options: RunOptions) -> None:
    """Do all of the study, or what of it is missing, and write its result."""
    study, path = CollageRun(options), options.results / "collage.json"

    def held(seed: int) -> bool:
        return all(len(study.finished(table)) == len(table) for table in study.tables((seed,)).values())

    seeds = seeds_to_write(path, options.seeds or (SEEDS[:1] if options.quick else SEEDS), held)
    backbones = pretrain_missing(FLAVOURS, study.root, study.folder, options)
    tables, first = study.tables(seeds), study.variants()
    # All that depends on nothing at once, so that no process waits for the last training of a table.
    ready = [*(each for table in tables.values() for each in table.values()), *first.values()]
    if not study.train("the paper's settings and single changes", dict(enumerate(ready))):
        # An empty result must not replace one that is not.
        if study.failures:
            raise RuntimeError("; ".join(study.failures))
        raise ValueError("time ran out before any training ended, nothing was written; give more --seconds")
    tried, best = search(partial(study.train, "search"), first, 0 if options.quick else ROUNDS)
    chosen = {place: training for place, (_, training) in best.items()}
    tables["tuned"] = {} if options.quick else tuned_table(chosen, seeds)
    study.train("the best settings", tables["tuned"])
    made = {name: study.finished(table) for name, table in tables.items()}
    maps = study.folder / "weights.safetensors"
    if not maps.is_file() and study.seconds_left != 0 and not study.failures:
        epochs, patience = study.settings.epochs, study.settings.patience
        training = Training("gsp", "pnca", zsr=ZSR, epochs=epochs, patience=patience)
        worker = study.worker()
        model, sets, _ = worker.train(training)
        write_shown_weights(model, sets, worker.collages, maps)
    write_result(
        path,
        {
            "backbones": backbones,
            "epochs": study.settings.epochs,
            "patience": study.settings.patience,
            "fine_tuned_epochs": study.settings.fine_tuned_epochs,
            "best": {" ".join(place): name for place, (name, _) in best.items()},
            "best_settings": {" ".join(place): training.asked() for place, training in chosen.items()},
            "search": search_rows(study.finished(tried)),
            **{name: summary_rows(found, seeds) for name, found in made.items()},
            "unfinished": {name: len(table) - len(made[name]) for name, table in tables.items()},
            "trainings": len(study.store.runs()),
            "seconds": round(time.monotonic() - study.started),
        },
        command=EXPERIMENT.command(options, seeds),
        seeds=seeds,
        origins=[run.origin for run in study.store.runs()],
    )
    if maps.is_file() and find_spec("matplotlib") is not None:
        draw_weights(maps, options.images / "collage.png")
    if study.failures:
        raise RuntimeError("; ".join(study.failures))


def summary_rows(found: Mapping[tuple[str, str, int], Mapping[str, Any]], seeds: Sequence[int]) -> list[dict[str, Any]]:
    """Average over seeds: a row a layer and loss, figures in percent, with those of every seed."""
    rows = []
    for name, loss in dict.fromkeys(key[:2] for key in found):
        runs = {seed: found[name, loss, seed] for seed in seeds if (name, loss, seed) in found}
        values = [100 * run["map@r"] for run in runs.values()]
        rows.append(
            {
                "row": name,
                "loss": loss,
                "map@r": round(fmean(values), 2),
                "std": round(stdev(values), 2) if len(values) > 1 else None,
                "by_seed": {str(seed): round(100 * run["map@r"], 2) for seed, run in runs.items()},
                "p@1": round(100 * fmean(run["p@1"] for run in runs.values()), 2),
                "validation": round(100 * fmean(run["validation"] for run in runs.values()), 2),
                **_means([*runs.values()]),
            }
        )
    return rows


def search_rows(found: Mapping[tuple[str, str, str], Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return a row a variant of the search: its figure on validation classes, and on test classes afterwards."""
    return [
        {
            "pooling": pooling,
            "loss": loss,
            "variant": name,
            "validation": round(100 * run["validation"], 2),
            "test": round(100 * run["map@r"], 2),
            **_means([run]),
        }
        for (pooling, loss, name), run in found.items()
    ]


def _means(runs: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    found = {}
    for name, scale in (("entropy", 1), ("on_object", 1), ("by_sub_class", 100)):
        values = [scale * run[name] for run in runs if run.get(name) is not None]
        found[name] = round(fmean(values), 4) if values else None
    return found


def missing(record: Record) -> str:
    """Return the trainings and seeds that a result lacks; empty where it is complete."""
    left = [f"{count} trainings of {name}" for name, count in record["value"]["unfinished"].items() if count]
    return ", ".join([*left, *filter(None, [missing_seeds(SEEDS)(record)])])


def headlines(value: Any) -> list[Headline]:
    """Return MAP@R of GAP and of GSP with the regularisation, at the paper's settings."""
    cells = cells_of({"value": value}, "frozen")
    return [
        Headline(
            f"MAP@R, {shown}, {name}, frozen backbone",
            f"{paper_of(name, loss):.2f}",
            plus_minus(cells[name, loss]["map@r"], cells[name, loss]["std"]) if (name, loss) in cells else "not run",
        )
        for loss, shown in LOSSES.items()
        for name in ("GAP", "GSP+ZSR")
    ]


EXPERIMENT = Experiment(
    name="collage",
    claim="an object among three distractors: GSP finds it where average pooling mixes all four",
    shows="Figure 3 (b) and the first two columns of the pooling table (Supp.)",
    cost="at most 392 trainings; one H200 with --processes 14 --backend triton",
    needs=("cifar100",),
    files=("collage",),
    run=run,
    tables=TABLES,
    plots={"collage_table": draw_bars},
    settings=CollageSettings,
    missing=missing,
    headlines=headlines,
    parallel=True,
)
