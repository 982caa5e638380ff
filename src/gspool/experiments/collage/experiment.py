"""Cifar Collage: the pooling table's first two columns, the objects alone, a fine-tuned backbone, attention maps.

An object of CIFAR-100 among three images of shared classes; classes of training, validation and test have nothing in
common. Paper: GAP 8.09 and GSP 22.68 MAP@R with the contrastive loss, 10.68 and 27.61 with ProxyNCA++.
Ours: results/collage.json, docs/images/collage.png.

    gspool reproduce collage --root ~/data --device cuda --processes 14 --backend triton      # one H200, 8 minutes
    gspool reproduce collage --quick                                          # a stand-in for CIFAR-100, one minute
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from gspool.experiments.certificate import write_result
from gspool.experiments.collage.picture import draw_attention
from gspool.experiments.collage.rows import DISTILLED, FINE_TUNED, FINE_TUNING, find_row, table_trainings
from gspool.experiments.collage.search import LOSSES
from gspool.experiments.collage.study import CollageSettings, Searched, Study
from gspool.experiments.collage.summary import search_rows, summary_rows
from gspool.experiments.collage.tables import render, unfinished
from gspool.experiments.collage.training import ZSR, Training
from gspool.experiments.experiment import Experiment, RunOptions

Trainings = dict[tuple[str, str, int], Training]


def run(options: RunOptions) -> None:
    """Do all of the study, or what of it is missing, and write its result and its picture."""
    study = Study(options)
    searched = study.search()
    tables = {
        "tuned": tuned_trainings(study, searched),
        "frozen": table_trainings(study.seeds, **study.usual),
        "distilled": row_trainings(study, DISTILLED, {"data": "distilled"}),
        "fine_tuned": row_trainings(study, FINE_TUNED, {**FINE_TUNING, "epochs": study.settings.fine_tuned_epochs}),
    }
    if options.quick:
        few = {"tuned": (), "frozen": ("GAP", "GSP+ZSR"), "distilled": ("GAP",), "fine_tuned": ("GSP+ZSR",)}
        tables = {
            name: {key: each for key, each in table.items() if key[0] in few[name] and key[1] == "pnca"}
            for name, table in tables.items()
        }
    # All at once first, so that no process waits for the last training of a table.
    study.train("all tables", dict(enumerate(each for table in tables.values() for each in table.values())))
    made = {name: study.train(name, table) for name, table in tables.items()}
    attention = None
    if not study.time_is_up:
        attention = draw_attention(study.usual, study.ground, options.device, options.images / "collage.png")
    write_result(
        options.results / "collage.json",
        {
            "backbones": study.backbones,
            "epochs": study.settings.epochs,
            "patience": study.settings.patience,
            "fine_tuned_epochs": study.settings.fine_tuned_epochs,
            "best": {f"{pooling} {loss}": name for (pooling, loss), (name, _) in searched.best.items()},
            "search": search_rows(searched.found),
            **{name: summary_rows(found, study.seeds) for name, found in made.items()},
            "unfinished": {name: len(table) - len(made[name]) for name, table in tables.items()},
            "attention": attention,
            "trainings": len(study.ledger.entries),
            "seconds": round(time.monotonic() - study.started),
        },
        command=EXPERIMENT.command(options),
        seeds=study.seeds,
        libraries=["matplotlib", "pytorch-metric-learning"],
        device=torch.device(options.device),
    )
    study.say(f"written: {options.results / 'collage.json'}")


def tuned_trainings(study: Study, searched: Searched) -> Trainings:
    """Give GAP, GSP and GSP+ZSR with the best settings of the search, for every seed."""
    return {
        (name, loss, seed): replace(training, seed=seed, zsr=zsr)
        for (pooling, loss), (_, training) in searched.best.items()
        for name, zsr in ((("GAP", 0.0),) if pooling == "gap" else (("GSP", 0.0), ("GSP+ZSR", ZSR)))
        for seed in study.seeds
    }


def row_trainings(study: Study, names: tuple[str, ...], changes: Mapping[str, Any]) -> Trainings:
    """Give the trainings of some rows of the table, changed."""
    return {
        (row.name, loss, seed): Training(row.pooling, loss, seed, **{**study.usual, **row.changes, **changes})
        for row in map(find_row, names)
        for loss in LOSSES
        for seed in study.seeds
    }


EXPERIMENT = Experiment(
    name="collage",
    promise="an object among three distractors: GSP finds it where average pooling mixes all four",
    shows="Figure 3 (b) and the first two columns of the pooling table (Supp.)",
    cost="8 minutes on one H200",
    needs=("cifar100",),
    files=("collage",),
    run=run,
    render=render,
    settings=CollageSettings,
    unfinished=unfinished,
)
