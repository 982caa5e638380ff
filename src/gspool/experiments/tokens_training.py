"""One training of the synthetic study: learned tokens, bags of them pooled and compared, hulls of the classes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn

from gspool import data, pooling
from gspool.data import ClassBalancedBatches
from gspool.data.tokens import TokenSamples
from gspool.evaluation import retrieval_metrics
from gspool.experiments.runs import on_engine
from gspool.losses import LossParts
from gspool.training.config import ScheduleConfig, TrainerConfig
from gspool.training.launch import make_fabric
from gspool.training.loop import Task, run_loop

if TYPE_CHECKING:
    from jaxtyping import Float64, Int64
    from numpy import ndarray
    from torch import Tensor

    from gspool.data.image_set import Split
    from gspool.functional.results import Pooled

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


class TokenModel(nn.Module):
    """A table of learned tokens and a layer that pools the bag of a sample; nothing is normalised."""

    def __init__(self, num_tokens: int, settings: TokenSettings) -> None:
        super().__init__()
        self.tokens = nn.Parameter((2 * torch.rand(num_tokens, settings.dim) - 1) * RANGE)
        options: dict[str, Any] = {}
        if settings.pooling == "gsp":
            options = {"prototypes": settings.prototypes, "mu": settings.mu, "epsilon": settings.epsilon}
        self.layer = pooling.create(settings.pooling, settings.dim, **options)
        if isinstance(self.layer, pooling.GSP):
            self.layer.init_prototypes((2 * torch.rand(64 * settings.prototypes, settings.dim) - 1) * RANGE)

    def pool(self, bags: Int64[Tensor, "B N"]) -> Pooled:
        """Look up the tokens of each bag and pool them."""
        return self.layer.pool(self.tokens[bags])

    @torch.no_grad()
    def keep_in_range(self) -> None:
        """Clamp the tokens."""
        self.tokens.clamp_(-RANGE, RANGE)


class Samples(NamedTuple):
    """Bags of token numbers and their classes; numbers from ``first_background`` on are background."""

    bags: Int64[Tensor, "S N"]
    labels: Int64[Tensor, " S"]
    num_tokens: int
    first_background: int


def draw_samples(split: Split, settings: TokenSettings) -> Samples:
    """Draw one split of the study as tensors."""
    drawn = data.create("tokens", split=split, samples_per_class=settings.samples_per_class, seed=settings.seed)
    assert isinstance(drawn.images, TokenSamples)
    return Samples(drawn.images.samples, drawn.labels, drawn.images.num_tokens, drawn.images.first_background)


class TokenTask(Task):
    """The study as a task of the training loop: contrastive loss on pooled bags, MAP@R on validation bags."""

    module: TokenModel

    def __init__(self, settings: TokenSettings) -> None:
        from pytorch_metric_learning.distances import LpDistance
        from pytorch_metric_learning.losses import ContrastiveLoss

        torch.manual_seed(settings.seed)
        self.settings = settings
        self.train, self.validation, self.test = (
            draw_samples(split, settings) for split in ("train", "validation", "test")
        )
        self.module = TokenModel(self.train.num_tokens, settings)
        distance = LpDistance(normalize_embeddings=False, p=2, power=1)
        self.metric = ContrastiveLoss(pos_margin=0.0, neg_margin=settings.neg_margin, distance=distance)
        self.plan = ClassBalancedBatches(
            self.train.labels, CLASSES, IMAGES_PER_CLASS, seed=settings.seed, rank=0, world_size=1
        )

    def optimiser(self) -> torch.optim.Optimizer:
        """Return Adam; the tokens are clamped after each of its steps."""
        optimiser = torch.optim.Adam(self.module.parameters(), self.settings.lr)
        optimiser.register_step_post_hook(lambda *_: self.module.keep_in_range())
        return optimiser

    def batches(self, first: int, last: int) -> Iterator[Int64[Tensor, " B"]]:
        """Yield the rows of steps ``first`` to ``last - 1``."""
        epoch, rows = -1, torch.empty(0)
        for step in range(first, last):
            if step // len(self.plan) != epoch:
                epoch = step // len(self.plan)
                self.plan.set_epoch(epoch)
                rows = self.plan.plan().flatten(1)
            yield rows[step % len(self.plan)]

    def loss(self, batch: Int64[Tensor, " B"], step: int) -> LossParts:
        """Compute the contrastive loss of a batch."""
        metric = self.metric(self.module.pool(self.train.bags[batch]).pooled, self.train.labels[batch])
        return LossParts(total=metric, metric=metric)

    def evaluate(self) -> dict[str, float]:
        """Measure retrieval among the validation bags."""
        return self.measure(self.validation)

    @torch.no_grad()
    def measure(self, samples: Samples) -> dict[str, float]:
        """Measure retrieval among samples that were not trained on."""
        return dict(retrieval_metrics(self.module.pool(samples.bags).pooled, samples.labels, ks=()))


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
    with torch.no_grad():
        pooled = task.module.pool(task.test.bags)
    assert pooled.weights is not None
    background = task.test.bags >= task.test.first_background
    overlap = hull_overlap(pooled.pooled.double().numpy(), task.test.labels.numpy())
    return {
        "map@r": figures["map@r"],
        "p@1": figures["p@1"],
        "epochs": outcome.steps // epoch,
        "on_background": float((pooled.weights * background).sum(1).mean()),
        "overlapping_pairs": overlap.pairs,
        "strangers_inside": overlap.strangers,
        "curve": [round(row["map@r"], 4) for row in outcome.curve],
        "geometry": {
            "tokens": _rounded(task.module.tokens.detach()),
            "pooled": _rounded(pooled.pooled),
            "labels": task.test.labels.tolist(),
        },
    }


def _rounded(points: Tensor) -> list[list[float]]:
    return [[round(value, 5) for value in row] for row in points.tolist()]


class Overlap(NamedTuple):
    """Pairs of hulls with a common area, and the share of samples inside the hull of another class."""

    pairs: int
    strangers: float


def hull_overlap(points: Float64[ndarray, "S 2"], labels: Int64[ndarray, " S"]) -> Overlap:
    """Compare the convex hull of every class with the samples and the hulls of all others.

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
    return Overlap(int(pairs), float(strange.mean()))
