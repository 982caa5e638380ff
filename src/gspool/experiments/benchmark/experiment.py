"""Table 2 and the CUB columns of the pooling table: six losses, average pooling against GSP, on four benchmarks.

Paper, CUB, MAP@R of 128D models, BN-Inception: C2 20.58 with GAP, 21.52 with GSP; ProxyNCA++ 20.63 and 20.75.
Ours: results/benchmark_DATA.json, with the ResNet50 of Keras, from which the authors' reference can start as well.

    gspool reproduce benchmark --data cub --weights resnet50.safetensors --device cuda
    gspool reproduce benchmark --arms search --folds 0 --seeds 0       # the settings tried beyond the paper's
    gspool reproduce benchmark --protocol conventional --losses xbm+c1
    gspool reproduce benchmark --quick

Every training is kept when it ends, and none is made twice: a later call adds folds, seeds, losses and layers.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from gspool.evaluation import PROTOCOLS
from gspool.experiments.benchmark.arms import DATA, POOLINGS, Arm, paper_arms, pooling_table_arms, search_arms
from gspool.experiments.benchmark.figures import study_figures
from gspool.experiments.benchmark.runs import Study, ground_of, train_missing
from gspool.experiments.benchmark.section import SEEDS, file_name, render, render_study, unfinished
from gspool.experiments.benchmark.store import Store
from gspool.experiments.certificate import read_result, write_result
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
        variants: which of the settings of search, with semicolons between; all if none are named.
        folds: which folds, with commas between; all of the protocol's if none are named.
        backbone: a name of gspool.models.list_backbones().
        weights: the file of its ImageNet weights.
        processes: trainings at a time.
        seconds: no training begins after this long, and those under way end at their next evaluation; 0 for no limit.
        max_steps: an end for runs that early stopping does not end; 0 for none.
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
        arms += [arm for arm in search_arms(losses) if not chosen.variants or arm.variant in _variants(chosen.variants)]
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


def _variants(text: str) -> list[str]:
    known = [arm.variant for arm in search_arms(("c2",))]
    words = [word.strip() for word in text.split(";")]
    unknown = [word for word in words if word not in known]
    if unknown:
        raise ValueError(f"the search has no setting {'; '.join(unknown)!r}; its settings are {'; '.join(known)}")
    return words


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
    ground = ground_of(study, options)
    try:
        train_missing(study, ground, store, options)
    finally:
        # What is done counts, also where another training broke.
        if store.runs():
            write_figures(path, study, store, ground, options, EXPERIMENT.command(options))
    value = read_result(path)["value"]
    if study.protocol == "fair":
        from gspool.experiments.benchmark.picture import draw

        draw(value, options.images / f"{path.stem}.png")
    print(render_study(value))


def write_figures(
    path: Path, study: Study, store: Store, ground: Any, options: RunOptions, command: str, wanted: Any = None
) -> None:
    """Write the figures of a store's trainings with their birth certificate."""
    value = {
        "data": study.data,
        "protocol": study.protocol,
        "backbone": study.backbone,
        **study_figures(store, PROTOCOLS[study.protocol], ground, wanted),
    }
    seeds = sorted({run["asked"]["seed"] for run in value["runs"]})
    write_result(path, value, command=command, seeds=seeds, libraries=LIBRARIES, device=options.device)


EXPERIMENT = Experiment(
    name="benchmark",
    promise="GSP in the place of average pooling improves every loss on every benchmark by about a point of MAP@R",
    shows="Table 2, Supp. Tables 1, 2 and 4",
    cost="two losses, GAP and GSP, four folds and three repeats of CUB: 48 trainings, about 20 minutes on one H200",
    files=("benchmark_cub",),
    needs=("cub",),
    run=run,
    render=render,
    settings=BenchmarkSettings,
    why_not_run="needs a GPU, the data set, and the backbone's ImageNet weights",
    unfinished=unfinished,
)
