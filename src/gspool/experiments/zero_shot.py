"""Zero-shot prediction on CIFAR-10: attributes of five classes predict where the other five lie (Figure 5).

Eight prototypes, ProxyNCA++, with and without the zero-shot regularisation; 1,000 random splits of the classes, l2 and
cosine. The paper draws, and gives no numbers: attributes learned with the regularisation predict far better. Ours:
results/zero_shot.json, docs/images/zero_shot.png.

    gspool reproduce zero-shot --root ~/data     # half an hour on one CPU core, less on a GPU
    gspool reproduce zero-shot --quick           # a stand-in for CIFAR, half a minute

It shares its ResNet20 with `collage`. If the folder of --work has none, one is trained first: 100 epochs are 9,700
batches of 512, 2.0 s each on one core (AMD EPYC), 5.5 hours together; two minutes on one H200.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, cast

import torch

from gspool import data
from gspool.data.splits import image_fold
from gspool.evaluation import zero_shot_prediction
from gspool.evaluation.statistics import matched_difference, with_interval
from gspool.experiments.cifar import (
    MapHead,
    fit_head,
    map_sets,
    pretrain_missing,
    read_backbone,
    write_cifar10_stand_in,
    write_cifar100_stand_in,
)
from gspool.experiments.experiment import Experiment, Headline, Record, RunOptions
from gspool.experiments.plots import save, subplots
from gspool.experiments.runs import missing_seeds, run_seeds
from gspool.experiments.tables import markdown_table, mean_std, plus_minus
from gspool.models.cifar_resnet import Flavour
from gspool.training.presets import PRESETS

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from gspool.data.image_set import Split
    from gspool.executor.grid import Worker
    from gspool.models.backbone import Backbone
    from gspool.training import TrainConfig
    from gspool.training.gpu_data import TensorSet

    Maps = dict[Split, TensorSet]

SEEDS = tuple(range(12))
CLASSES, SPLITS = 10, 1000
ZSR = 0.5
VARIANTS = {"without": 0.0, "with": ZSR}
KINDS = ("l2", "cosine")
MEASURES = {"accuracy": "nearest is right", "map": "MAP"}
GAINS = {
    "map_l2": "MAP of predictions, l2",
    "map_cosine": "MAP of predictions, cosine",
    "map@r": "MAP@R of the embedding",
}
FLAVOUR: Flavour = "postactivation"


@dataclass(frozen=True)
class ZeroShotSettings:
    """Options of the zero-shot study.

    Args:
        backend: how GSP is computed: "torch", or "triton" on a GPU.
    """

    backend: str = "torch"


@dataclass(frozen=True)
class Training:
    """One training. The paper gives 8 prototypes and the loss; mu, epsilon and lambda are those of Cifar Collage."""

    zsr: float = 0.0
    seed: int = 0
    prototypes: int = 8
    mu: float = 0.2
    epsilon: float = 10.0
    dim: int = 128
    lr: float = 1e-3
    images_per_class: int = 6
    steps: int = 3_000
    images: None = None  # all of a class; a number limited them once, and is part of the key of a run

    def config(self) -> TrainConfig:
        """Return the configuration of `gspool.training.fit`: that of Cifar Collage, all ten classes in every batch."""
        config = PRESETS["paper/collage"]()
        config.data.classes_per_batch, config.data.images_per_class = CLASSES, self.images_per_class
        config.loss.name, config.loss.zsr = "pnca", self.zsr
        config.optimiser.lr, config.optimiser.clip = self.lr, 0.0
        config.model.dim = self.dim
        config.trainer.max_steps, config.trainer.seed = self.steps, self.seed
        config.trainer.evaluate_every, config.trainer.patience = max(self.steps // 3, 1), None
        return config


def make_worker(root: Path | None, folder: Path, device: str, backend: str) -> Worker:
    """Compute the maps of CIFAR-10, and return the function that does one training on them."""
    maps = cifar10_maps(read_backbone(folder, FLAVOUR, device), root, device)
    return partial(train, maps, folder.parent / "zero_shot", device, backend)


def cifar10_maps(backbone: Backbone, root: Path | None, device: str) -> Maps:
    """Compute the feature maps of CIFAR-10; a tenth of the training images is held out to watch the training."""
    train, test = (data.create("cifar10", root, split, allow_partial=True) for split in ("train", "test"))
    fold = image_fold(train, fold=0, folds=10)
    return map_sets(backbone, {"train": fold.train, "validation": fold.validation, "test": test}, device)


def train(
    maps: Maps, folder: Path, device: str, backend: str, asked: Mapping[str, Any], seconds: float = 0.0
) -> dict[str, Any] | None:
    """Train a head, describe the test images by its attributes, and predict classes from others."""
    training = Training(**asked)
    torch.manual_seed(training.seed)
    model = MapHead(
        maps["train"].pixels.shape[1],
        "gsp",
        training.dim,
        prototypes=training.prototypes,
        mu=training.mu,
        epsilon=training.epsilon,
        # As in the authors' reference: k-center among the vectors of the first two batches.
        warm_start=2 * CLASSES * training.images_per_class,
        backend=backend,
    )
    result = fit_head(training.config(), asked, folder, device, model, maps, seconds)
    if result is None:
        return None
    attributes, embeddings = describe(model, maps["test"])
    labels = maps["test"].labels
    test = zero_shot_prediction(attributes, embeddings, labels.to(embeddings.device), SPLITS, training.seed)
    histograms = torch.stack([attributes[labels == label].mean(0) for label in range(CLASSES)])
    figures = {f"{name}_{kind}": getattr(test, f"{name}_{kind}") for name in MEASURES for kind in KINDS}
    return {
        "map@r": result.metrics["map@r"],
        "p@1": result.metrics["p@1"],
        "entropy": result.weights_entropy,
        **{name: figure.mean for name, figure in figures.items()},
        **{f"{name}_std": figure.std for name, figure in figures.items()},
        "chance": test.chance,
        "histograms": [[round(value, 5) for value in row] for row in histograms.tolist()],
        "seconds": round(result.seconds, 1),
    }


@torch.no_grad()
def describe(
    model: MapHead, images: TensorSet, batch_size: int = 500
) -> tuple[Float[Tensor, "N M"], Float[Tensor, "N D"]]:
    """Compute the attributes, shares of the prototypes, and the embedding of every image."""
    model.eval()
    seen = [model.embed(images.evaluation_images(places)) for places in torch.arange(len(images)).split(batch_size)]
    attributes = [cast("Tensor", each.attributes).float() for each in seen]
    return torch.cat(attributes), torch.cat([each.embedding.float() for each in seen])


def run(options: RunOptions) -> None:
    """Train with and without the regularisation with every seed, predict, and write the figures."""
    chosen = options.settings or ZeroShotSettings()
    usual, root, folder = Training(), options.root, options.work / "collage"
    if options.quick:
        usual = replace(usual, steps=4, images_per_class=4)
        root = write_cifar10_stand_in(write_cifar100_stand_in(options.work / "stand-in", 2, 1), 4, 4)

    def jobs(seed: int) -> dict[str, dict[str, Any]]:
        return {name: asdict(replace(usual, zsr=zsr, seed=seed)) for name, zsr in VARIANTS.items()}

    (backbone,) = pretrain_missing([FLAVOUR], root, folder, options)
    worker = partial(make_worker, root, folder, options.device, chosen.backend)
    done = run_seeds(EXPERIMENT, options, SEEDS, jobs, worker)
    value = {
        "settings": {name: value for name, value in asdict(usual).items() if name not in ("zsr", "seed")},
        "zsr": ZSR,
        "backbone": backbone,
        "rows": [summary(name, [done.found[name, seed] for seed in done.seeds]) for name in VARIANTS],
        "histograms": {name: done.found[name, done.seeds[0]].get("histograms") for name in VARIANTS},
        "class_names": data.create("cifar10", root, "test", allow_partial=True).class_names,
    }
    done.write(value, without="histograms")


def summary(name: str, runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Average over seeds, in percent, with the standard deviation between seeds."""
    row: dict[str, Any] = {"regularisation": name}
    for measure, shown in MEASURES.items():
        for kind in KINDS:
            mean, std = mean_std([100 * run[f"{measure}_{kind}"] for run in runs])
            row |= {f"{shown}, {kind}": mean, f"{shown}, {kind}, std": std}
    row["MAP@R of the embedding"] = round(100 * fmean(run["map@r"] for run in runs), 2)
    row["chance"] = round(100 * runs[0]["chance"], 2)
    return row


def prediction_table(record: Record) -> str:
    """Write accuracy and MAP of the predictions, and MAP@R of the embedding, without and with the regularisation."""
    rows = [
        {
            "regularisation": row["regularisation"],
            **{
                f"{name}, {kind}": plus_minus(row[f"{name}, {kind}"], row[f"{name}, {kind}, std"], 1)
                for name in MEASURES.values()
                for kind in KINDS
            },
            "MAP@R of the embedding": row["MAP@R of the embedding"],
        }
        for row in record["value"]["rows"]
    ]
    chance = record["value"]["rows"][0]["chance"]
    guessing = dict.fromkeys(rows[0]) | {"regularisation": "guessing"}
    for kind in KINDS:
        guessing |= {f"nearest is right, {kind}": f"{chance:.1f}", f"MAP, {kind}": f"{chance_of_map(chance):.1f}"}
    return markdown_table([*rows, guessing], ".2f", text_columns=1)


def chance_of_map(chance: float) -> float:
    """Return the MAP of guessing in percent, from how often guessing is right: the mean of 1 / rank."""
    classes = round(100 / chance)
    return 100 * sum(1 / rank for rank in range(1, classes + 1)) / classes


def gain_table(record: Record) -> str:
    """Write what the regularisation adds, with 95 % intervals and the number of seeds ahead."""
    found: dict[bool, dict[int, Mapping[str, float]]] = {True: {}, False: {}}
    for run in record["value"]["runs"]:
        found[run["asked"]["zsr"] > 0][run["asked"]["seed"]] = run["found"]
    rows = []
    for name, shown in GAINS.items():
        ours, plain = ({seed: each[name] for seed, each in found[with_it].items()} for with_it in (True, False))
        each = matched_difference(ours, plain, scale=100)
        ahead = f"{each['ahead']} of {each['pairs']}" if each else ""
        rows.append({"figure": shown, "with − without": with_interval(each, 1), "seeds ahead": ahead})
    return markdown_table(rows, text_columns=1)


def draw(record: Record, path: Path) -> None:
    """Draw the attribute histograms of the first seed: a row a class, a column a prototype, a panel a variant.

    A result without histograms leaves the figure as it is.
    """
    value = record["value"]
    histograms = value.get("histograms") or {}
    if not histograms or not all(histograms.values()):
        return
    names, highest = value["class_names"], max(max(row) for rows in histograms.values() for row in rows)
    figure, grid = subplots(1, len(histograms), 4.4 * len(histograms), 3.6)
    for axes, (name, rows) in zip(grid[0], histograms.items(), strict=True):
        shown = axes.imshow(rows, cmap="viridis", vmin=0, vmax=highest, aspect="auto")
        axes.set_yticks(range(len(names)), names, fontsize=8)
        axes.set_xticks(range(len(rows[0])), range(1, len(rows[0]) + 1), fontsize=8)
        axes.set_xlabel("prototype", fontsize=9)
        axes.set_title(f"{name} regularisation", fontsize=10)
    figure.colorbar(shown, ax=list(grid[0]), shrink=0.8, label="share of the attributes")
    save(figure, path)


def headlines(value: Any) -> list[Headline]:
    """Return MAP by l2 distance without and with the regularisation."""
    return [
        Headline(
            f"MAP of predicted classes (guessing {chance_of_map(row['chance']):.1f}), l2, {row['regularisation']} "
            "regularisation",
            "drawn only",
            plus_minus(row["MAP, l2"], row["MAP, l2, std"], 1),
        )
        for row in value["rows"]
    ]


EXPERIMENT = Experiment(
    name="zero-shot",
    claim="attributes of five classes of CIFAR-10 predict where the other five lie, better with the regularisation",
    shows="Figure 5",
    cost="half an hour on one CPU core, less on a GPU; if the ResNet20 of `collage` is missing, 5.5 hours on a core "
    "or two minutes on one H200 to train it first",
    needs=("cifar10", "cifar100"),
    files=("zero_shot",),
    run=run,
    tables={"prediction": prediction_table, "gain": gain_table},
    plots={"zero_shot": draw},
    settings=ZeroShotSettings,
    missing=missing_seeds(SEEDS),
    headlines=headlines,
    parallel=True,
)
