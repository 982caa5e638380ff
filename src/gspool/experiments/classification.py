"""GSP in a classifier: accuracy, then P@1 and MAP@R of the pooled features after LDA (Supp., Other Problems).

Paper, ImageNet: ResNetV2-50 75.26 % right with average pooling and 76.53 % with GSP, MAP@R 41.18 and 42.58;
EfficientNetV2-B3 80.03 and 82.00 %, 59.98 and 62.75. Ours: results/classification.json, CIFAR-100 with ResNet20; other
data and networks are written to files of their own.

    gspool reproduce classification --root DATA --device cuda --processes 5      # 15 trainings, one H200
    gspool reproduce classification --data folder --root IMAGENET --backbone timm/resnetv2_50 --epochs 90
    gspool reproduce classification --quick

90 % of the training images are learned from; mu and epsilon, which the paper does not give, are chosen by the accuracy
on the others.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from gspool import data as data_sets
from gspool.data.image_source import FileImages
from gspool.data.registry import data_root
from gspool.evaluation.statistics import seed_difference, with_interval
from gspool.executor.run_store import RunStore
from gspool.experiments.cifar import write_cifar100_stand_in
from gspool.experiments.classification_training import POOLINGS, train
from gspool.experiments.experiment import Experiment, Headline, Record, RunOptions, result_name
from gspool.experiments.runs import run_seeds
from gspool.experiments.tables import markdown_table, plus_minus
from gspool.provenance import write_result

SEEDS = (0, 1, 2)
# Accuracy, P@1 and MAP@R on ImageNet, in percent.
PAPER = {
    ("timm/resnetv2_50", "gap"): (75.26, 69.30, 41.18),
    ("timm/resnetv2_50", "gsp"): (76.53, 71.34, 42.58),
    ("timm/tf_efficientnetv2_b3", "gap"): (80.03, 79.23, 59.98),
    ("timm/tf_efficientnetv2_b3", "gsp"): (82.00, 80.80, 62.75),
}
FIGURES = ("accuracy", "p@1", "map@r")


@dataclass(frozen=True)
class ClassificationSettings:
    """Options of the classification experiment.

    Args:
        data: cifar100, cifar10, or folder for images in ROOT/train/CLASS and ROOT/test/CLASS, such as ImageNet's.
        backbone: resnet20, timm/resnetv2_50, timm/tf_efficientnetv2_b3 or another.
        epochs: passes over the training images.
        batch_size: images in a batch.
        lr: the largest learning rate of the schedule.
        held_out: share of the training images that are held out to choose mu and epsilon.
        workers: processes that load images, where they come from files.
    """

    data: str = "cifar100"
    backbone: str = "resnet20"
    epochs: int = 60
    batch_size: int = 512
    lr: float = 0.4
    held_out: float = 0.1
    workers: int = 8


def run(options: RunOptions) -> None:
    """Train what is missing, and write the figures."""
    usual, root, folder = ClassificationSettings(), options.root, options.work / "classification"
    chosen = options.settings or usual
    if options.quick:
        root = write_cifar100_stand_in(folder / "stand-in", images=4)
        chosen = ClassificationSettings(backbone="small_cnn", epochs=1, batch_size=200, workers=0)
    images = fingerprint_of(chosen.data, root)
    named = chosen.data if images is None else f"{chosen.data}-{images[:8]}"
    name = result_name("classification", (named, chosen.backbone), (usual.data, usual.backbone))
    path = options.results / f"{name}.json"
    libraries = ["timm"] if chosen.backbone.startswith("timm/") else []
    store = RunStore(folder / "runs.jsonl", path, device=options.device, libraries=libraries)

    def jobs(seed: int) -> dict[str, dict[str, Any]]:
        shared = {"data": chosen.data, "images": images, "backbone": chosen.backbone, "epochs": chosen.epochs}
        shared |= {"batch_size": chosen.batch_size, "lr": chosen.lr, "held_out": chosen.held_out}
        return {name: {"pooling": name, "seed": seed, **shared} for name in POOLINGS}

    worker = partial(partial, train, root, options.quick, folder, options.device, chosen.workers)
    seeds, found, runs = run_seeds(options, path, store, SEEDS, jobs, worker)
    value = {
        "data": chosen.data,
        **({} if images is None else {"images": images}),
        "backbone": chosen.backbone,
        "epochs": chosen.epochs,
        "held_out": chosen.held_out,
        "chosen": best_gsp({name: [found[name, seed]["validation"] for seed in seeds] for name in POOLINGS}),
        "runs": [{"asked": run.asked, "found": run.found} for run in runs],
    }
    command = EXPERIMENT.command(options, seeds)
    write_result(path, value, command=command, seeds=seeds, origins=[run.origin for run in runs])


def fingerprint_of(data: str, root: Path | None) -> str | None:
    """Return a short name for the images in the user's folders; None for published data, which its name identifies.

    It is a hash of paths below ``root``, classes and file sizes. Files are not read: ImageNet takes seconds. An image
    that another of the same name and size replaced is not noticed.
    """
    if data != "folder":
        return None
    found, place = hashlib.sha256(), data_root(root)
    base = place.parent if place.is_file() else place
    for split in ("train", "test"):
        images = data_sets.create(data, root, split)
        assert isinstance(images.images, FileImages)
        for path, label in zip(images.images.paths, images.labels.tolist(), strict=True):
            shown = path.relative_to(base) if path.is_relative_to(base) else path
            line = (images.split, shown.as_posix(), images.class_names[label], str(path.stat().st_size))
            found.update("\0".join(line).encode() + b"\n")
    return found.hexdigest()[:16]


def best_gsp(validation: Mapping[str, Sequence[float]]) -> str:
    """Return the GSP with the highest mean accuracy on the held-out images."""
    return max((name for name in validation if name.startswith("gsp")), key=lambda name: fmean(validation[name]))


def layer_name(name: str) -> str:
    """Return the name of a layer in tables: with its mu and epsilon."""
    layer, options = POOLINGS[name]
    return layer if layer == "gap" else f"{layer}, mu {options['mu']:g}, epsilon {options['epsilon']:g}"


def in_percent(runs: Sequence[Mapping[str, Any]], figure: str) -> list[float]:
    """Return a figure of some runs in percent."""
    return [100 * (run["metrics"][figure] if "@" in figure else run[figure]) for run in runs]


def spread(values: Sequence[float]) -> str:
    """Write the mean and the standard deviation (n - 1)."""
    return plus_minus(fmean(values), stdev(values) if len(values) > 1 else None)


def accuracy_table(record: Record) -> str:
    """Write accuracy, P@1 and MAP@R of every layer; the paper's beside ours where it has the network."""
    value = record["value"]
    rows = []
    for name in dict.fromkeys(run["asked"]["pooling"] for run in value["runs"]):
        own = [run["found"] for run in value["runs"] if run["asked"]["pooling"] == name]
        row: dict[str, Any] = {
            "pooling": f"{layer_name(name)}{' (chosen)' if name == value['chosen'] else ''}",
            "held out, %": spread(in_percent(own, "validation")),
        }
        paper = PAPER.get((value["backbone"], name))
        for place, (figure, shown) in enumerate(zip(FIGURES, ("accuracy, %", "P@1", "MAP@R"), strict=True)):
            row[shown] = spread(in_percent(own, figure))
            if any(network == value["backbone"] for network, _ in PAPER):
                row[f"{shown}, paper (ImageNet)"] = None if paper is None else paper[place]
        row["entropy"] = f"{fmean(run['entropy'] or 0.0 for run in own):.4f}"
        row["runs"] = len(own)
        rows.append(row)
    return markdown_table(rows, ".2f", text_columns=1)


def gains(value: Mapping[str, Any]) -> dict[str, list[float]]:
    """Return how far the chosen GSP is ahead of average pooling on test images, in points, seed by seed."""
    found = {(run["asked"]["pooling"], run["asked"]["seed"]): run["found"] for run in value["runs"]}
    seeds = [seed for name, seed in found if name == value["chosen"] and ("gap", seed) in found]
    gsp, gap = ([found[name, seed] for seed in seeds] for name in (value["chosen"], "gap"))
    return {
        figure: [one - other for one, other in zip(in_percent(gsp, figure), in_percent(gap, figure), strict=True)]
        for figure in ("accuracy", "map@r")
    }


def gain_table(record: Record) -> str:
    """Write the gain of the chosen GSP over average pooling with 95 % intervals, and the paper's two on ImageNet."""
    rows = []
    for figure, values in gains(record["value"]).items():
        place, row = FIGURES.index(figure), {"figure": {"accuracy": "accuracy", "map@r": "MAP@R"}[figure]}
        row["GSP − GAP, points"] = with_interval(seed_difference(values)) if values else ""
        for network in dict.fromkeys(network for network, _ in PAPER):
            gain = PAPER[network, "gsp"][place] - PAPER[network, "gap"][place]
            row[f"paper, {network.removeprefix('timm/')}"] = f"{gain:+.2f}"
        rows.append(row)
    return markdown_table(rows, text_columns=1)


def missing(record: Record) -> str:
    """Return how many trainings a result lacks; empty where it is complete."""
    made, promised = len(record["value"]["runs"]), len(SEEDS) * len(POOLINGS)
    return f"{promised - made} of {promised} trainings" if made < promised else ""


def headlines(value: Any) -> list[Headline]:
    """Return the accuracy with average pooling and with the chosen GSP."""
    found = []
    for name in ("gap", value["chosen"]):
        ours = [run["found"] for run in value["runs"] if run["asked"]["pooling"] == name]
        what = f"accuracy, {value['data']}, {value['backbone']}, {layer_name(name)}"
        found.append(Headline(what, "on ImageNet only", spread(in_percent(ours, "accuracy"))))
    return found


EXPERIMENT = Experiment(
    name="classification",
    claim="GSP improves a classifier, and the geometry of its features",
    shows="Evaluation in classification task (Supp., Application of GSP to Other Problems)",
    cost="15 trainings of ResNet20 on CIFAR-100, some 4 minutes each on one H200 with five at a time",
    files=("classification",),
    needs=("cifar100",),
    run=run,
    tables={"accuracy": accuracy_table, "gain": gain_table},
    settings=ClassificationSettings,
    missing=missing,
    headlines=headlines,
    parallel=True,
)
