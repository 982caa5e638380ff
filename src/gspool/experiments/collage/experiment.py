"""Cifar Collage: the pooling table's first two columns, the objects alone, a fine-tuned backbone, attention maps.

An object of CIFAR-100 among three images of shared classes; classes of training, validation and test have nothing in
common. Paper: GAP 8.09 and GSP 22.68 MAP@R with the contrastive loss, 10.68 and 27.61 with ProxyNCA++.
Ours: results/collage.json, docs/images/collage.png.

    gspool reproduce collage --root ~/data --device cuda --processes 14 --backend triton   # one H200, half an hour
    python -m gspool.experiments.collage.pictures       # the pictures, where the run had no matplotlib
    gspool reproduce collage --quick                                          # a stand-in for CIFAR-100, one minute
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gspool.experiments.collage.bars import PICTURE, draw_bars
from gspool.experiments.collage.picture import show_attention
from gspool.experiments.collage.plan import Trainings, in_order, most_trainings, paper_tables, tuned_trainings
from gspool.experiments.collage.rows import find_row
from gspool.experiments.collage.search_text import LOSS_NAMES
from gspool.experiments.collage.study import CollageSettings, Study
from gspool.experiments.collage.summary import search_rows, summary_rows
from gspool.experiments.collage.tables import render, unfinished
from gspool.experiments.collage.tuning import first_variants, search
from gspool.experiments.collage.verdict import verdict
from gspool.experiments.experiment import Experiment, Headline, RunOptions, mean_and_deviation
from gspool.experiments.kept_seeds import seeds_to_write
from gspool.provenance import known_origin, write_result


def run(options: RunOptions) -> None:
    """Do all of the study, or what of it is missing, and write its result and its picture.

    Raises:
        RuntimeError: if trainings broke, after everything else is done and written.
        ValueError: if there was no time for any training, or the result there has seeds that would be dropped; then
            nothing is written.
    """
    study = Study(options)
    path = options.results / "collage.json"

    def held(seed: int) -> bool:
        tables = _tables(study, (seed,))
        return all(len(study.finished(table)) == len(table) for table in tables.values())

    study.seeds = seeds_to_write(path, study.seeds, held)
    try:
        _run(study, options, path)
    finally:
        study.dismiss()
    if study.broken:
        raise RuntimeError("; ".join(study.broken))


def _tables(study: Study, seeds: tuple[int, ...]) -> dict[str, Trainings]:
    """Give the trainings of the tables that wait for no search; a few of them where the version is a tiny one."""
    tables = paper_tables(seeds, study.settings)
    if not study.options.quick:
        return tables
    few = {"frozen": ("GAP", "GSP+ZSR"), "distilled": ("GAP",), "fine_tuned": ("GSP+ZSR",)}
    return {
        name: {key: each for key, each in table.items() if key[0] in few[name] and key[1] == "pnca"}
        for name, table in tables.items()
    }


def _run(study: Study, options: RunOptions, path: Path) -> None:
    tables = _tables(study, study.seeds)
    # All that waits for nothing at once, so that no process waits for the last training of a table.
    ready = in_order([*(each for table in tables.values() for each in table.values())])
    first = [*ready, *first_variants(study).values()]
    if not study.train("the paper's settings, and what is tried first", dict(enumerate(first))):
        # An empty result would take the place of one that is not, and has nothing to show.
        if study.broken:
            return
        raise ValueError(f"no time for any of {len(first)} trainings: nothing was written; give more --seconds")
    searched = search(study)
    tables["tuned"] = {} if options.quick else tuned_trainings(study.seeds, searched)
    study.train("the best settings", tables["tuned"])
    made = {name: study.finished(table) for name, table in tables.items()}
    attention, maps = None, study.folder / "attention.safetensors"
    if maps.is_file() or not study.time_is_up:
        attention = show_attention(study.usual, lambda: study.ground, options, maps)
    write_result(
        path,
        {
            "backbones": study.backbones,
            "epochs": study.settings.epochs,
            "patience": study.settings.patience,
            "fine_tuned_epochs": study.settings.fine_tuned_epochs,
            "best": {" ".join(place): name for place, (name, _) in searched.best.items()},
            "best_settings": {" ".join(place): training.asked() for place, (_, training) in searched.best.items()},
            "search": search_rows(searched.found),
            **{name: summary_rows(found, study.seeds) for name, found in made.items()},
            "unfinished": {name: len(table) - len(made[name]) for name, table in tables.items()},
            "attention": attention,
            "trainings": len(study.ledger.entries),
            "seconds": round(time.monotonic() - study.started),
        },
        command=EXPERIMENT.command(replace(options, seeds=study.seeds) if options.seeds else options),
        seeds=study.seeds,
        origins=study.ledger.origins(known_origin(path, study.here)),
    )
    if find_spec("matplotlib") is not None and made["frozen"]:
        draw_bars(summary_rows(made["frozen"], study.seeds), options.images / PICTURE)


def headlines(value: Mapping[str, Any]) -> list[Headline]:
    """Give MAP@R of GAP and of GSP with the regularisation, at the paper's settings."""
    found = []
    rows = {(row["row"], row["loss"]): row for row in value["frozen"]}
    for loss, shown in LOSS_NAMES.items():
        for name in ("GAP", "GSP+ZSR"):
            row, paper = rows.get((name, loss)), find_row(name).paper
            ours = "not run" if row is None else mean_and_deviation(row["map@r"], row["std"])
            theirs = "" if paper is None else f"{paper[loss]:.2f}"
            found.append(Headline(f"MAP@R, {shown}, {name}, frozen backbone", theirs, ours))
    return found


EXPERIMENT = Experiment(
    name="collage",
    promise="an object among three distractors: GSP finds it where average pooling mixes all four",
    shows="Figure 3 (b) and the first two columns of the pooling table (Supp.)",
    cost=f"at most {most_trainings()} trainings, about half an hour on one H200",
    needs=("cifar100",),
    files=("collage",),
    run=run,
    render=render,
    usual_options="--device cuda --processes 14 --backend triton",
    settings=CollageSettings,
    unfinished=unfinished,
    headlines=headlines,
    verdict=verdict,
)
