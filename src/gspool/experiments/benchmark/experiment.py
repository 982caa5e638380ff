"""Table 2 and the CUB columns of the pooling table: six losses, average pooling against GSP, on four benchmarks.

Paper, CUB, MAP@R of 128D models, BN-Inception: C2 20.58 with GAP, 21.52 with GSP; ProxyNCA++ 20.63 and 20.75.
Ours: results/benchmark_DATA.json, with the ResNet50 of Keras, from which the authors' reference can start as well.

    gspool reproduce benchmark --data cub --weights resnet50.safetensors --device cuda
    gspool reproduce benchmark --arms search --folds 0 --seeds 0       # the settings tried beyond the paper's
    gspool reproduce benchmark --protocol conventional --losses xbm+c1
    gspool reproduce benchmark --seconds 500                           # what can be done in this time
    gspool reproduce benchmark --train false                           # figures of what has been trained
    gspool reproduce benchmark --quick

Every training is kept when it ends, and none is made twice: a later call adds folds, seeds, losses and layers. They are
made repeat by repeat, GAP and GSP of a fold together, so that whatever time allows is a comparison of pairs.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import torch

from gspool.evaluation import PROTOCOLS
from gspool.experiments.benchmark.arms import DATA, POOLINGS, SEEDS, Arm, paper_arms, pooling_table_arms
from gspool.experiments.benchmark.figures import maps_of, study_figures
from gspool.experiments.benchmark.missing import unfinished
from gspool.experiments.benchmark.runs import Study, ground_of, labels_of, train_missing
from gspool.experiments.benchmark.search import BEST, best_arms, named_variants, search_arms
from gspool.experiments.benchmark.section import file_name, headlines, judge, render, render_study
from gspool.experiments.benchmark.store import Store
from gspool.experiments.certificate import device_name, read_result, write_result
from gspool.experiments.experiment import Experiment, RunOptions

LIBRARIES = ("pytorch-metric-learning", "torchvision")


@dataclass(frozen=True)
class BenchmarkSettings:
    """What may be chosen about the benchmark.

    Args:
        data: cub, cars196, sop or inshop.
        protocol: fair (four folds, early stopping on held-out classes) or conventional (watched on the test classes).
        losses: names with commas between.
        poolings: names with commas between; "all" for those of Table 2, "table" for those of the pooling table.
        arms: paper (its settings), search (settings beyond them, for GSP), or both.
        variants: which of the settings of search, with semicolons between; all if none are named. "best" is that which
            is furthest ahead of GAP on validation classes.
        folds: which folds, with commas between; all of the protocol's if none are named.
        backbone: a name of gspool.models.list_backbones().
        weights: the file of its ImageNet weights.
        processes: trainings at a time.
        seconds: no training begins that would not end within this time, going by those that have ended; those under way
            then end at their next evaluation, and the next call goes on with them; 0 for no limit.
        max_steps: an end for runs that early stopping does not end; 0 for none.
        train: false trains nothing and writes the figures of what has been trained, here or elsewhere.
    """

    data: str = "cub"
    protocol: Literal["fair", "conventional"] = "fair"
    losses: str = "c2,pnca"
    poolings: str = "gap,gsp"
    arms: Literal["paper", "search", "both"] = "paper"
    variants: str = ""
    folds: str = ""
    backbone: str = "keras/resnet50"
    weights: str | None = None
    processes: int = 8
    seconds: float = 0.0
    max_steps: int = 0
    train: bool = True


def study_of(options: RunOptions) -> Study:
    """Turn what was chosen into the trainings that are wanted.

    Raises:
        ValueError: if the data set, a fold or a setting of the search is not known.
    """
    chosen = options.settings or BenchmarkSettings()
    if chosen.data not in DATA:
        raise ValueError(f"the paper's benchmarks are {', '.join(DATA)}, got {chosen.data!r}")
    protocol = PROTOCOLS[chosen.protocol]
    folds = tuple(int(word) for word in chosen.folds.split(",")) if chosen.folds else tuple(range(protocol.folds))
    if any(not 0 <= fold < protocol.folds for fold in folds):
        raise ValueError(f"the {protocol.name} protocol has folds 0 to {protocol.folds - 1}, got {chosen.folds!r}")
    losses = tuple(chosen.losses.split(","))
    arms: list[Arm] = []
    if chosen.arms != "search":
        named = POOLINGS if chosen.poolings == "all" else tuple(chosen.poolings.split(","))
        arms += pooling_table_arms(losses) if chosen.poolings == "table" else paper_arms(losses, named)
    if chosen.arms != "paper":
        # The best of them is known once finished trainings have been looked at.
        named = () if chosen.variants == BEST else tuple(named_variants(chosen.variants))
        arms += [arm for arm in search_arms(losses) if arm.variant in named]
    return Study(
        data=chosen.data,
        protocol=chosen.protocol,
        arms=tuple(arms),
        folds=folds,
        seeds=options.seeds or SEEDS,
        backbone=chosen.backbone,
        weights=chosen.weights,
        processes=chosen.processes,
        seconds=chosen.seconds or None,
        max_steps=chosen.max_steps,
    )


def store_of(study: Study, options: RunOptions) -> Store:
    """Open the folder of a benchmark's trainings, which all experiments on it share."""
    backbone = study.backbone.replace("/", "-")
    return Store(options.work / "benchmark" / f"{study.data}-{study.protocol}-{backbone}")


def run(options: RunOptions) -> None:
    """Train what is missing, and write the figures of all that has been trained."""
    study = study_of(options)
    path = options.results / f"{file_name(study.data, study.protocol)}.json"
    store = store_of(study, options)
    if path.is_file():
        store.adopt(read_result(path)["value"]["runs"])
    chosen = options.settings or BenchmarkSettings()
    if chosen.arms != "paper" and chosen.variants == BEST:
        best = best_arms(chosen.losses.split(","), store.runs(), PROTOCOLS[study.protocol].folds)
        study = replace(study, arms=(*study.arms, *best))
    ground = ground_of(study, options) if chosen.train else labels_of(study, options)
    try:
        if chosen.train:
            train_missing(study, ground, store, options)
    finally:
        # What is done counts, also where another training broke.
        if store.runs():
            write_figures(path, study, store, ground, options, EXPERIMENT.command(options))
    value = read_result(path)["value"]
    if study.protocol == "fair":
        picture = options.images / f"{path.stem}.png"
        draw_where_possible(picture, lambda: _draw(value, picture))
    print(render_study(value))


def draw_where_possible(path: Path, draw: Callable[[], None]) -> None:
    """Draw, or say how to do it later: a machine that trains need not have matplotlib."""
    if find_spec("matplotlib") is None:
        print(f"{path.name} is not drawn, for want of matplotlib; `--train false` draws it where there is one")
    else:
        draw()


def _draw(value: dict[str, Any], path: Path) -> None:
    from gspool.experiments.benchmark.looks import draw_looks
    from gspool.experiments.benchmark.picture import draw, draw_summary

    draw(value, path)
    draw_summary(value, path.with_name(f"{path.stem}_summary.png"))
    maps = maps_of(value["arms"])
    if maps:
        draw_looks(maps, path.with_name(f"{path.stem}_looks.png"))


def write_figures(
    path: Path, study: Study, store: Store, ground: Any, options: RunOptions, command: str, wanted: Any = None
) -> None:
    """Write the figures of a store's trainings with their birth certificate, whose device is that of the trainings."""
    value = {
        "data": study.data,
        "protocol": study.protocol,
        "backbone": study.backbone,
        **study_figures(store, PROTOCOLS[study.protocol], ground, wanted),
    }
    before = read_result(path) if path.is_file() else {"device": device_name(torch.device(options.device))}
    devices = {run["found"].get("device", before["device"]) for run in value["runs"]}
    seeds = sorted({run["asked"]["seed"] for run in value["runs"]})
    record = write_result(path, value, command=command, seeds=seeds, libraries=LIBRARIES, device=options.device)
    if devices != {record["device"]}:
        # Put together elsewhere: the certificate stays that of the trainings, as far as it is known.
        note = f"Put together from finished trainings on {record['device']}."
        record = {
            **record,
            **before,
            "value": value,
            "seeds": seeds,
            "device": ", ".join(sorted(devices)),
            "note": note,
        }
        path.write_text(json.dumps(record, indent=1, allow_nan=False) + "\n", encoding="utf-8")


EXPERIMENT = Experiment(
    name="benchmark",
    promise="GSP in the place of average pooling improves every loss on every benchmark by about a point of MAP@R",
    shows="Table 2, Supp. Tables 1, 2 and 4",
    cost="two losses, GAP and GSP, four folds and three repeats of CUB: 48 trainings, some 12 minutes of "
    "one H200 with ten side by side under MPS",
    files=("benchmark_cub",),
    needs=("cub",),
    run=run,
    render=render,
    settings=BenchmarkSettings,
    why_not_run="needs a GPU, the data set, and the backbone's ImageNet weights",
    unfinished=unfinished,
    verdict=judge,
    not_attempted="Cars196, SOP, In-shop and BN-Inception, whose data and weights are not to be had here (`--data`, "
    "`--backbone` and `--weights` take them where they are)",
    headlines=headlines,
)
