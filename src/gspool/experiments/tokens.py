"""The synthetic study: bags of tokens, half of them background, pooled by GAP and by GSP (Sec. 5.1, Figure 3 a).

16 classes of 4 tokens each and 4 background tokens that all classes share; the tokens are learned. The paper draws, and
gives no numbers: the convex hulls of the classes overlap with GAP and are separate with GSP. Ours:
results/tokens.json, docs/images/tokens.png.

    gspool reproduce tokens             # 10 minutes on one CPU core
    gspool reproduce tokens --quick     # seconds
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn

from gspool import data, pooling
from gspool.data import ClassBalancedBatches
from gspool.evaluation import retrieval_metrics
from gspool.evaluation.statistics import matched_difference, with_interval
from gspool.experiments.experiment import Experiment, Headline, Record, RunOptions
from gspool.experiments.plots import save, subplots
from gspool.experiments.runs import missing_seeds, on_engine, run_seeds
from gspool.experiments.tables import markdown_table, mean_std, plus_minus
from gspool.losses import LossParts
from gspool.training.config import ScheduleConfig, TrainerConfig
from gspool.training.gpu_data import TensorSet, tensor_batches
from gspool.training.loop import Task, run_loop
from gspool.training.processes import make_fabric

if TYPE_CHECKING:
    from jaxtyping import Float64, Int64
    from numpy import ndarray
    from torch import Tensor

    from gspool.data import ImageSet
    from gspool.data.image_set import Split
    from gspool.data.tokens import TokenSamples
    from gspool.functional.results import Pooled
    from gspool.training.stream import Batch

SEEDS = (0, 1, 2, 3, 4, 5)
LAYERS = ("gap", "gsp")
PAIRS = "pairs of hulls that overlap"
# "We also constrain the range of the token vectors to be in between [-0.3, 0.3]".
RANGE = 0.3
CLASSES, IMAGES_PER_CLASS, BACKGROUND = 16, 4, 4


@dataclass(frozen=True)
class TokenSettings:
    """One training. lr, patience (in epochs), range and batches are the paper's; it does not give the rest.

    Two dimensions, so that the geometry can be drawn as it is. The margin of the contrastive loss, on vectors that are
    not normalised, is what 16 classes can keep from each other in the square of the tokens.
    """

    pooling: str = "gap"
    seed: int = 0
    dim: int = 2
    lr: float = 1e-4
    patience: int = 30
    epochs: int = 600
    evaluate_every: int = 5
    samples_per_class: int = 100
    prototypes: int = 32
    mu: float = 0.3
    epsilon: float = 40.0
    neg_margin: float = 0.2


QUICK = TokenSettings(epochs=2, evaluate_every=1, samples_per_class=4, prototypes=8)


class TokenModel(nn.Module):
    """A table of learned tokens and a layer that pools the bag of a sample; nothing is normalised."""

    def __init__(self, num_tokens: int, settings: TokenSettings) -> None:
        super().__init__()
        self.tokens = nn.Parameter(_drawn(num_tokens, settings.dim))
        options: dict[str, Any] = {}
        if settings.pooling == "gsp":
            options = {"prototypes": settings.prototypes, "mu": settings.mu, "epsilon": settings.epsilon}
        self.layer = pooling.create(settings.pooling, settings.dim, **options)
        if isinstance(self.layer, pooling.GSP):
            self.layer.init_prototypes(_drawn(64 * settings.prototypes, settings.dim))

    def pool(self, bags: Int64[Tensor, "B N"]) -> Pooled:
        """Look up the tokens of each bag and pool them."""
        return self.layer.pool(self.tokens[bags])


def _drawn(count: int, dim: int) -> Tensor:
    return (2 * torch.rand(count, dim) - 1) * RANGE


def bags_of(samples: ImageSet) -> TokenSamples:
    """Return the bags of token numbers of a split."""
    return cast("TokenSamples", samples.images)


class TokenTask(Task):
    """The study as a task of the training loop: contrastive loss on pooled bags, MAP@R on validation bags."""

    module: TokenModel

    def __init__(self, settings: TokenSettings) -> None:
        from pytorch_metric_learning.distances import LpDistance
        from pytorch_metric_learning.losses import ContrastiveLoss

        def draw(split: Split) -> ImageSet:
            each = settings.samples_per_class
            return data.create("tokens", split=split, samples_per_class=each, seed=settings.seed)

        torch.manual_seed(settings.seed)
        self.settings = settings
        self.train, self.validation, self.test = draw("train"), draw("validation"), draw("test")
        self.bags = TensorSet.of(bags_of(self.train).samples, self.train.labels)
        self.module = TokenModel(bags_of(self.train).num_tokens, settings)
        distance = LpDistance(normalize_embeddings=False, p=2, power=1)
        self.metric = ContrastiveLoss(pos_margin=0.0, neg_margin=settings.neg_margin, distance=distance)
        self.plan = ClassBalancedBatches(
            self.train.labels, CLASSES, IMAGES_PER_CLASS, seed=settings.seed, rank=0, world_size=1
        )

    def optimiser(self) -> torch.optim.Optimizer:
        """Return Adam; the tokens are clamped after each of its steps."""
        optimiser = torch.optim.Adam(self.module.parameters(), self.settings.lr)
        optimiser.register_step_post_hook(self.keep_in_range)
        return optimiser

    @torch.no_grad()
    def keep_in_range(self, *_: Any) -> None:
        """Clamp the tokens."""
        self.module.tokens.clamp_(-RANGE, RANGE)

    def batches(self, first: int, last: int) -> Iterator[Batch]:
        """Yield the bags of steps ``first`` to ``last - 1``."""
        return tensor_batches(self.bags, self.plan, first, last, self.settings.seed)

    def loss(self, batch: Batch, step: int) -> LossParts:
        """Compute the contrastive loss of a batch."""
        metric = self.metric(self.module.pool(batch.images).pooled, batch.labels)
        return LossParts(total=metric, metric=metric)

    def evaluate(self) -> dict[str, float]:
        """Measure retrieval among the validation bags."""
        return self.measure(self.validation)

    @torch.no_grad()
    def measure(self, samples: ImageSet) -> dict[str, float]:
        """Measure retrieval among samples that were not trained on."""
        return dict(retrieval_metrics(self.module.pool(bags_of(samples).samples).pooled, samples.labels, ks=()))


def train_tokens(asked: Mapping[str, Any], seconds: float = 0.0) -> dict[str, Any] | None:
    """Train until validation stands still, and measure the best model on test samples; None if time ran out."""
    settings = TokenSettings(**asked)
    task = TokenTask(settings)
    epoch = len(task.plan)
    trainer = TrainerConfig(
        max_steps=settings.epochs * epoch,
        evaluate_every=settings.evaluate_every * epoch,
        # The paper's patience counts epochs, the loop's evaluations.
        patience=-(-settings.patience // settings.evaluate_every),
        seed=settings.seed,
    )
    on_engine(trainer, "cpu", seconds)
    title = f"{settings.pooling}, seed {settings.seed}"
    outcome = run_loop(task, make_fabric(trainer), trainer, ScheduleConfig(), title=title)
    if outcome.ending == "time":
        return None
    figures = task.measure(task.test)
    bags = bags_of(task.test)
    with torch.no_grad():
        pooled = task.module.pool(bags.samples)
    assert pooled.weights is not None
    background = bags.samples >= bags.first_background
    overlapping, strangers = hull_overlap(pooled.pooled.double().numpy(), task.test.labels.numpy())
    return {
        "map@r": figures["map@r"],
        "p@1": figures["p@1"],
        "epochs": outcome.steps // epoch,
        "on_background": float((pooled.weights * background).sum(1).mean()),
        "overlapping_pairs": overlapping,
        "strangers_inside": strangers,
        "curve": [round(row["map@r"], 4) for row in outcome.curve],
        "geometry": {
            "tokens": _rounded(task.module.tokens.detach()),
            "pooled": _rounded(pooled.pooled),
            "labels": task.test.labels.tolist(),
        },
    }


def _rounded(points: Tensor) -> list[list[float]]:
    return [[round(value, 5) for value in row] for row in points.tolist()]


def hull_overlap(points: Float64[ndarray, "S 2"], labels: Int64[ndarray, " S"]) -> tuple[int, float]:
    """Return how many pairs of hulls of classes have a common area, and the share of samples in another's hull.

    Two convex polygons are disjoint if and only if a side of one of them has all of the other beyond it.
    """
    import numpy as np
    from scipy.spatial import ConvexHull

    classes = np.unique(labels)
    # Each row of equations is a side: its outward normal and its offset.
    sides: dict[Any, Any] = {c: ConvexHull(points[labels == c]).equations for c in classes}

    def outside(which: Any, others: Any) -> Any:
        return others @ sides[which][:, :2].T + sides[which][:, 2]

    pairs = 0
    for place, first in enumerate(classes):
        for second in classes[place + 1 :]:
            apart = [(outside(a, points[labels == b]) >= 0).all(0).any() for a, b in ((first, second), (second, first))]
            pairs += not any(apart)
    strange = np.zeros(len(points), dtype=bool)
    for c in classes:
        strange |= (outside(c, points) < 0).all(1) & (labels != c)
    return int(pairs), float(strange.mean())


def run(options: RunOptions) -> None:
    """Train both layers with every seed, write the figures, and draw the seed with GSP's median MAP@R."""
    usual = QUICK if options.quick else TokenSettings()
    libraries = ("matplotlib", "pytorch-metric-learning", "scipy")

    def jobs(seed: int) -> dict[str, dict[str, Any]]:
        return {layer: asdict(replace(usual, pooling=layer, seed=seed)) for layer in LAYERS}

    done = run_seeds(EXPERIMENT, options, SEEDS, jobs, partial(partial, train_tokens), libraries=libraries)
    shown = median_seed({seed: done.found["gsp", seed]["map@r"] for seed in done.seeds})
    value = {
        "settings": {name: value for name, value in asdict(usual).items() if name not in ("pooling", "seed")},
        "rows": [summary(layer, {seed: done.found[layer, seed] for seed in done.seeds}) for layer in LAYERS],
        "shown_seed": shown,
    }
    done.write(value, without="geometry")
    draw({layer: done.found[layer, shown] for layer in LAYERS}, options.images / "tokens.png")


def median_seed(figures: Mapping[int, float]) -> int:
    """Return the seed whose figure is the median, the lower of two.

    Example:
        >>> median_seed({0: 0.9, 1: 0.7, 2: 0.8, 3: 0.75})
        3
    """
    return sorted(figures, key=lambda seed: figures[seed])[(len(figures) - 1) // 2]


def summary(layer: str, runs: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    """Average the figures of one layer over its seeds, and keep those of every seed."""
    each = runs.values()
    mean, std = mean_std([100 * run["map@r"] for run in each])
    return {
        "layer": layer.upper(),
        "MAP@R": mean,
        "std": std,
        "P@1": round(100 * fmean(run["p@1"] for run in each), 2),
        PAIRS: round(fmean(run["overlapping_pairs"] for run in each), 1),
        "seeds without overlap": f"{sum(not run['overlapping_pairs'] for run in each)} of {len(runs)}",
        "samples inside another hull, percent": round(100 * fmean(run["strangers_inside"] for run in each), 1),
        "weight on background": round(fmean(run["on_background"] for run in each), 3),
        "epochs": round(fmean(run["epochs"] for run in each)),
        "by_seed": {
            str(seed): {"MAP@R": round(100 * run["map@r"], 2), PAIRS: run["overlapping_pairs"], "epochs": run["epochs"]}
            for seed, run in runs.items()
        },
    }


def layer_table(record: Record) -> str:
    """Write the figures of both layers; medians beside means, because one run that stops early moves a mean."""
    rows = []
    for row in record["value"]["rows"]:
        by_seed = {name: [run[name] for run in row["by_seed"].values()] for name in ("MAP@R", PAIRS)}
        rows.append(
            {
                "layer": row["layer"],
                "MAP@R": plus_minus(row["MAP@R"], row["std"]),
                "MAP@R, median": float(median(by_seed["MAP@R"])),
                "P@1": row["P@1"],
                "overlapping pairs of 120": fmean(by_seed[PAIRS]),
                "overlapping pairs, median": float(median(by_seed[PAIRS])),
                "seeds without overlap": row["seeds without overlap"],
                "samples inside another hull, %": row["samples inside another hull, percent"],
                "weight on background": row["weight on background"],
                "epochs": row["epochs"],
            }
        )
    return markdown_table(rows, ".2f", text_columns=1)


def seed_table(record: Record) -> str:
    """Write a row a seed, with the figures of both layers."""
    rows, shown = record["value"]["rows"], {"MAP@R": "MAP@R", PAIRS: "overlapping pairs", "epochs": "epochs"}
    lines = []
    for seed in rows[0]["by_seed"]:
        figures = {f"{shown[name]}, {row['layer']}": row["by_seed"][seed][name] for name in shown for row in rows}
        lines.append({"seed": seed, **figures})
    return markdown_table(lines, ".2f", text_columns=0)


def gain(record: Record) -> str:
    """Write GSP − GAP in points of MAP@R over seeds, with its 95 % interval."""
    gap, gsp = ({seed: run["MAP@R"] for seed, run in row["by_seed"].items()} for row in record["value"]["rows"])
    return with_interval(matched_difference(gsp, gap), 1)


def draw(outcomes: Mapping[str, Mapping[str, Any]], path: Path) -> None:
    """Draw the pooled samples with the hull of every class, and the tokens as crosses, one panel a layer.

    Nothing is drawn without matplotlib, or where the geometry is not at hand because the run was read from a result.
    """
    if find_spec("matplotlib") is None or not all(outcome.get("geometry") for outcome in outcomes.values()):
        print("tokens.png is not drawn: it needs matplotlib and trainings made here", flush=True)
        return
    import numpy as np
    from matplotlib import colormaps
    from scipy.spatial import ConvexHull

    figure, grid = subplots(1, len(outcomes), 4.2 * len(outcomes), 4.2)
    colours = colormaps["tab20"]
    for axes, (layer, outcome) in zip(grid[0], outcomes.items(), strict=True):
        pooled, labels, tokens = (np.array(outcome["geometry"][name]) for name in ("pooled", "labels", "tokens"))
        classes = np.unique(labels)
        each = (len(tokens) - BACKGROUND) // len(classes)
        for number in classes:
            own, colour = pooled[labels == number], colours(int(number))
            corners = own[ConvexHull(own).vertices]
            axes.fill(*corners.T, color=colour, alpha=0.25, linewidth=0)
            axes.plot(*own.T, ".", color=colour, markersize=3)
            axes.plot(*tokens[number * each : (number + 1) * each].T, "x", color=colour, markersize=5)
        axes.plot(*tokens[-BACKGROUND:].T, "x", color="black", markersize=7, markeredgewidth=2)
        axes.set_title(f"{layer.upper()}: MAP@R {100 * outcome['map@r']:.1f}", fontsize=11)
        axes.set(xticks=[], yticks=[], aspect="equal")
    save(figure, path)


def headlines(value: Any) -> list[Headline]:
    """Return MAP@R of both layers."""
    return [
        Headline(f"MAP@R, {row['layer']}", "drawn only", plus_minus(row["MAP@R"], row["std"], 1))
        for row in value["rows"]
    ]


EXPERIMENT = Experiment(
    name="tokens",
    claim="bags of tokens with a shared background: class hulls overlap with GAP and are separate with GSP",
    shows="Figure 3 (a)",
    cost="10 minutes on one CPU core",
    files=("tokens",),
    run=run,
    tables={"layers": layer_table, "seeds": seed_table, "gain": gain},
    missing=missing_seeds(SEEDS),
    headlines=headlines,
    on_gpu=False,
    parallel=True,
)
