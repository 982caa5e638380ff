"""Supp., Application of GSP to Other Problems: GSP in a classifier.

Accuracy, then P@1 and MAP@R of the pooled features after LDA to 512 dimensions.

Paper, ImageNet: ResNetV2-50 75.26 % right with average pooling, 76.53 % with GSP; MAP@R 41.18 and 42.58.
EfficientNetV2-B3 80.03 and 82.00; 59.98 and 62.75. Ours: results/classification.json, on CIFAR-100 with ResNet20; other
data and networks have files of their own, such as those of the paper wherever ImageNet lies in folders.

    gspool reproduce classification --root DATA --device cuda --processes 5
    gspool reproduce classification --data folder --root IMAGENET --backbone timm/resnetv2_50 --epochs 90
    gspool reproduce classification --quick
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gspool.experiments.cifar_stand_in import write_cifar100_stand_in
from gspool.experiments.classification_batches import ClassifierSettings
from gspool.experiments.classification_jobs import Job, fingerprint_of, train_jobs
from gspool.experiments.classification_table import USUAL, named_data, rendered, seen, shown_name, spread, written
from gspool.experiments.experiment import Experiment, Headline, RunOptions
from gspool.experiments.kept_seeds import seeds_to_write
from gspool.experiments.ledger import Ledger
from gspool.experiments.report import section
from gspool.experiments.result_names import name_beside
from gspool.provenance import known_origin, origin_here, read_result, write_result

FILE = "classification"
SEEDS = (0, 1, 2)
# Each has one name in results, and `shown_name` is that of tables. The paper does not say which mu and epsilon it
# classified with. The first is what `gspool.GSP` starts from; which of them is best is decided on training images that
# no network learned from.
POOLINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "gap": ("gap", {}),
    "gsp": ("gsp", {"prototypes": 64, **USUAL}),
    "gsp, mu 0.5, epsilon 20": ("gsp", {"prototypes": 64, "mu": 0.5, "epsilon": 20.0}),
    "gsp, mu 0.8, epsilon 5": ("gsp", {"prototypes": 64, "mu": 0.8, "epsilon": 5.0}),
    "gsp, mu 0.8, epsilon 20": ("gsp", {"prototypes": 64, "mu": 0.8, "epsilon": 20.0}),
}


@dataclass(frozen=True)
class ClassificationSettings:
    """What may be chosen about the classification.

    Args:
        data: cifar100, cifar10, or folder for images in ROOT/train/CLASS and ROOT/test/CLASS, such as ImageNet's.
        backbone: resnet20, timm/resnetv2_50, timm/tf_efficientnetv2_b3 or another.
        epochs: passes over the training images.
        batch_size: images in a batch.
        lr: the largest learning rate of the one cycle.
        held_out: share of the training images that nobody learns from; mu and epsilon are chosen on them.
        workers: processes that load images, where they come from files.
        processes: trainings at a time; on a large GPU five.
        captured: whether a GPU replays steps from a CUDA graph, where the images lie in its memory.
    """

    data: str = "cifar100"
    backbone: str = "resnet20"
    epochs: int = 60
    batch_size: int = 512
    lr: float = 0.4
    held_out: float = 0.1
    workers: int = 8
    processes: int = 1
    captured: bool = True


def run(options: RunOptions) -> None:
    """Train what is missing, and write the figures.

    Raises:
        ValueError: if the result there has seeds that would be dropped.
    """
    chosen = options.settings or ClassificationSettings()
    root = write_cifar100_stand_in(options.work / FILE / "stand-in", images=4) if options.quick else options.root
    if options.quick:
        chosen = ClassificationSettings(backbone="small_cnn", epochs=1, batch_size=200, workers=0)
    here = origin_here(options.device, ["timm"] if chosen.backbone.startswith("timm/") else [])
    ledger = Ledger(options.work / FILE / "trainings.jsonl", here)
    asked = options.seeds or (SEEDS[:1] if options.quick else SEEDS)
    images = fingerprint_of(chosen.data, root)
    path = options.results / f"{result_name(chosen.data, chosen.backbone, images)}.json"

    def jobs_of(seed: int) -> dict[tuple[str, int], Job]:
        return {
            (name, seed): Job(chosen.data, root, options.quick, chosen.held_out, settings, options.device, images)
            for name in POOLINGS
            for settings in [settings_of(name, chosen, seed, options.device)]
        }

    def held(seed: int) -> bool:
        return all(ledger.get(job.asked(name)) is not None for (name, _), job in jobs_of(seed).items())

    seeds = seeds_to_write(path, asked, held)
    jobs = {key: job for seed in seeds for key, job in jobs_of(seed).items()}
    missing = {key: job for key, job in jobs.items() if ledger.get(job.asked(key[0])) is None}

    def keep(key: tuple[str, int], found: dict[str, Any]) -> None:
        ledger.put(missing[key].asked(key[0]), found)
        print(f"{key[0]}, seed {key[1]}: {100 * found['accuracy']:.2f} % right, {found['seconds']:.0f} s", flush=True)

    train_jobs(missing, chosen.processes, keep)
    entries = [
        {"pooling": name, "seed": seed, **ledger.get(job.asked(name))}  # type: ignore[dict-item]
        for (name, seed), job in jobs.items()
    ]
    value = {
        "data": chosen.data,
        **({} if images is None else {"images": images}),
        "backbone": chosen.backbone,
        "epochs": chosen.epochs,
        "held_out": chosen.held_out,
        "chosen": chosen_pooling(entries),
        "runs": entries,
    }
    command = EXPERIMENT.command(replace(options, seeds=seeds) if options.seeds else options)
    origins = ledger.origins(known_origin(path, here), [job.asked(name) for (name, _), job in jobs.items()])
    write_result(path, value, command=command, seeds=seeds, origins=origins)
    print(rendered(value))


def result_name(data: str, backbone: str, images: str | None = None) -> str:
    """Name the result after the data and the network, each where it is not the usual one; no two share a file.

    ``images`` is the fingerprint of somebody's own pictures, which "folder" does not tell from others.

    Example:
        >>> result_name("cifar100", "resnet20"), result_name("folder", "timm/resnetv2_50", "0123456789abcdef")
        ('classification', 'classification_folder-01234567_timm-resnetv2_50')
    """
    usual = ClassificationSettings()
    return name_beside(FILE, (named_data(data, images, "-"), backbone), (usual.data, usual.backbone))


def chosen_pooling(runs: Sequence[Mapping[str, Any]]) -> str:
    """Name the GSP that was right most often on held-out training images, over all seeds.

    Example:
        >>> runs = [{"pooling": "gap", "validation": 0.9}, {"pooling": "gsp", "validation": 0.5}]
        >>> chosen_pooling([*runs, {"pooling": "gsp, mu 0.8, epsilon 5", "validation": 0.6}])
        'gsp, mu 0.8, epsilon 5'
    """
    reached: dict[str, list[float]] = {}
    for each in runs:
        if each["pooling"].startswith("gsp"):
            reached.setdefault(each["pooling"], []).append(each["validation"])
    return max(reached, key=lambda name: sum(reached[name]) / len(reached[name]))


def settings_of(name: str, chosen: ClassificationSettings, seed: int, device: str) -> ClassifierSettings:
    """Give the settings of one training."""
    pooling, pooling_options = POOLINGS[name]
    return ClassifierSettings(
        backbone=chosen.backbone,
        pooling=pooling,
        pooling_options=pooling_options,
        epochs=chosen.epochs,
        batch_size=chosen.batch_size,
        lr=chosen.lr,
        precision="32-true" if device == "cpu" else "bf16-mixed",
        workers=chosen.workers,
        seed=seed,
        captured=chosen.captured,
    )


def render(results: Path) -> str:
    """Write the section: what the experiment promises, then other data and networks where there are results of them."""
    others = [path.stem for path in sorted(results.glob(f"{FILE}_*.json"))]
    own = [FILE] if (results / f"{FILE}.json").is_file() or not others else []
    return "\n\n".join(section(results, name, written) for name in (*own, *others))


def unfinished(results: Path) -> str:
    """Count the trainings that are missing; empty where none is."""
    made, promised = len(read_result(results / f"{FILE}.json")["value"]["runs"]), len(SEEDS) * len(POOLINGS)
    return f"{promised - made} of {promised} trainings" if made < promised else ""


def headlines(value: dict[str, Any]) -> list[Headline]:
    """Give the accuracy with average pooling and with the chosen GSP; the paper's is on ImageNet, in other networks."""
    found = []
    for name in ("gap", value["chosen"]):
        ours = spread([run["accuracy"] for run in value["runs"] if run["pooling"] == name])
        what = f"accuracy, {named_data(value['data'], value.get('images'))}, {value['backbone']}, {shown_name(name)}"
        found.append(Headline(what, "on ImageNet only", ours))
    return found


EXPERIMENT = Experiment(
    name="classification",
    promise="GSP improves a classifier, and the geometry of its features",
    shows="Evaluation in classification task (Supp., Application of GSP to Other Problems)",
    cost="fifteen trainings of ResNet20 on CIFAR-100, some 4 minutes each on one H200 with five side by side",
    files=(FILE,),
    needs=("cifar100",),
    run=run,
    render=render,
    settings=ClassificationSettings,
    why_not_run="needs a GPU; the paper's networks need ImageNet",
    unfinished=unfinished,
    headlines=headlines,
    verdict=lambda record: seen(record["value"]),
    usual_options="--device cuda --processes 5",
    not_attempted="ImageNet, with ResNetV2-50 and EfficientNetV2-B3 (the data are not to be had here)",
)
