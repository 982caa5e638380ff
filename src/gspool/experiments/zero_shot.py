"""Zero-shot prediction on CIFAR-10: do attributes of five classes foretell where the other five lie (Figure 5).

Eight prototypes, ProxyNCA++, with and without the zero-shot regularisation; 1,000 splits of the classes, l2 and cosine.
Paper: attributes learned with the regularisation predict far better. Ours: results/zero_shot.json.

    gspool reproduce zero-shot --root ~/data                    # half an hour on one CPU core, less on a GPU
    gspool reproduce zero-shot --quick                          # a stand-in for CIFAR, half a minute

Its ResNet20 is that of `collage`. Where the folder of --work has none, it learns to classify CIFAR-100 first: 100
epochs are 9,700 batches of 512, each 2.0 s on one core (AMD EPYC), together 5.5 hours; on one H200 two minutes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from gspool import data
from gspool.experiments.cifar_pretraining import PretrainingSettings
from gspool.experiments.cifar_stand_in import write_cifar10_stand_in, write_cifar100_stand_in
from gspool.experiments.collage.backbones import pretrain_missing, read_backbone
from gspool.experiments.collage.recipe import ZSR
from gspool.experiments.crew import told_when_stopped
from gspool.experiments.experiment import Experiment, Headline, RunOptions, mean_and_deviation
from gspool.experiments.kept_seeds import seeds_to_write, seeds_unfinished, with_missing_seeds
from gspool.experiments.ledger import Ledger
from gspool.experiments.report import section
from gspool.experiments.zero_shot_picture import draw
from gspool.experiments.zero_shot_section import chance_of_map, seen, written
from gspool.experiments.zero_shot_training import KINDS, ZeroShotTraining, cifar10_maps, train_zero_shot
from gspool.provenance import known_origin, origin_here, write_result

SEEDS = tuple(range(12))
ARMS = {"without": 0.0, "with": ZSR}


@dataclass(frozen=True)
class ZeroShotSettings:
    """Options of the zero-shot study.

    Args:
        backend: how GSP is computed: "torch", or "triton" on a GPU.
        steps: of every training.
        images: training images of each class at most; 0 takes all.
    """

    backend: str = "torch"
    steps: int = 3_000
    images: int = 0


def run(options: RunOptions) -> None:
    """Train both arms with every seed, predict, write the figures and draw the histograms of the first seed.

    Raises:
        ValueError: if the result there has seeds that would be dropped.
    """
    given = options.settings if options.settings is not None else ZeroShotSettings()
    asked = options.seeds or (SEEDS[:1] if options.quick else SEEDS)
    usual = ZeroShotTraining(steps=given.steps, images=given.images or None)
    if options.quick:
        usual = replace(usual, steps=4, images_per_class=4)
    here, path = origin_here(options.device, ["matplotlib"]), options.results / "zero_shot.json"
    ledger = Ledger(options.work / "zero_shot" / "trainings.jsonl", here)

    def arms_of(seed: int) -> dict[str, ZeroShotTraining]:
        return {arm: replace(usual, zsr=zsr, seed=seed) for arm, zsr in ARMS.items()}

    def held(seed: int) -> bool:
        return all(ledger.get(each.asked()) is not None for each in arms_of(seed).values())

    seeds = seeds_to_write(path, asked, held)
    root = options.root
    if options.quick:
        root = write_cifar100_stand_in(options.work / "stand-in", 2, 1)
        write_cifar10_stand_in(root, images=4, test_images=4)
    # The backbone of the collage study, from its folder if it is there.
    tiny = PretrainingSettings(epochs=1, batch_size=64, lr=0.1) if options.quick else None
    (backbone_known,) = pretrain_missing(("postactivation",), root, options.work / "collage", options.device, tiny)
    trainings = {(arm, seed): each for seed in seeds for arm, each in arms_of(seed).items()}
    missing = {key: training for key, training in trainings.items() if ledger.get(training.asked()) is None}
    if missing:
        backbone = read_backbone(options.work / "collage", "postactivation", options.device)
        maps = cifar10_maps(backbone, root, options.device, usual.images)
        kept = 0
        with told_when_stopped(lambda: kept, len(missing)):
            for (arm, seed), training in missing.items():
                result = train_zero_shot(training, maps, options.device, given.backend)
                ledger.put(training.asked(), result)
                kept += 1
                print(f"{arm} regularisation, seed {seed}: {_told(result)}", flush=True)
    found: dict[tuple[str, int], Any] = {key: ledger.get(training.asked()) for key, training in trainings.items()}
    names = data.create("cifar10", root, "test", allow_partial=True).class_names
    picture = options.images / "zero_shot.png"
    draw({arm: found[arm, seeds[0]]["histograms"] for arm in ARMS}, names, picture)
    write_result(
        path,
        {
            "settings": {key: value for key, value in usual.asked().items() if key not in ("zsr", "seed")},
            "zsr": ZSR,
            "backbone": backbone_known,
            "rows": [summary(arm, [found[arm, seed] for seed in seeds]) for arm in ARMS],
            "runs": {f"{arm}, seed {seed}": _without_histograms(each) for (arm, seed), each in found.items()},
        },
        command=EXPERIMENT.command(replace(options, seeds=seeds) if options.seeds else options),
        seeds=seeds,
        origins=ledger.origins(known_origin(path, here), [each.asked() for each in trainings.values()]),
    )


def _told(found: Mapping[str, Any]) -> str:
    return ", ".join(f"MAP {kind} {100 * found[f'map_{kind}']:.1f}" for kind in KINDS)


def _without_histograms(found: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in found.items() if name != "histograms"}


def summary(arm: str, runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Average over the seeds, in percent; the deviation is that between seeds."""
    row: dict[str, Any] = {"regularisation": arm}
    for name, shown in (("accuracy", "nearest is right"), ("map", "MAP")):
        for kind in KINDS:
            values = [100 * run[f"{name}_{kind}"] for run in runs]
            row[f"{shown}, {kind}"] = round(mean(values), 2)
            row[f"{shown}, {kind}, std"] = round(stdev(values), 2) if len(values) > 1 else None
    row["MAP@R of the embedding"] = round(100 * mean(run["map@r"] for run in runs), 2)
    row["chance"] = round(100 * runs[0]["chance"], 2)
    return row


def render(results: Path) -> str:
    """Write the section."""
    command = EXPERIMENT.command()
    return section(
        results, "zero_shot", lambda record: with_missing_seeds(written(record), record["seeds"], SEEDS, command)
    )


def headlines(value: dict[str, Any]) -> list[Headline]:
    """Give MAP by l2 distance without and with the regularisation."""
    return [
        Headline(
            f"MAP of predicted classes (guessing {chance_of_map(row['chance']):.1f}), l2, {row['regularisation']} "
            "regularisation",
            "drawn only",
            mean_and_deviation(row["MAP, l2"], row["MAP, l2, std"], 1),
        )
        for row in value["rows"]
    ]


EXPERIMENT = Experiment(
    name="zero-shot",
    promise="attributes of five classes of CIFAR-10 foretell where the other five lie, better with the regularisation",
    shows="Figure 5",
    cost="half an hour on one CPU core, less on a GPU; where the ResNet20 of `collage` is not there yet, it is trained "
    "first, in five and a half hours on such a core or two minutes on one H200",
    needs=("cifar10", "cifar100"),
    files=("zero_shot",),
    run=run,
    render=render,
    unfinished=lambda results: seeds_unfinished(results / "zero_shot.json", SEEDS),
    settings=ZeroShotSettings,
    headlines=headlines,
    verdict=seen,
    not_attempted="images with their weights coloured by prototype (`gspool explain` draws such pictures of any model)",
)
