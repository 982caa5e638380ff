"""Learn tokens of which every sample is a bag: what average pooling and GSP make of the background (Supp. 2.1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn

from gspool import data, pooling
from gspool.data import ClassBalancedBatches
from gspool.data.tokens import TokenSamples
from gspool.evaluation import retrieval_metrics

if TYPE_CHECKING:
    from jaxtyping import Float, Int64
    from torch import Tensor

    from gspool.data.image_set import Split
    from gspool.functional.results import Pooled

# "We also constrain the range of the token vectors to be in between [-0.3, 0.3]".
RANGE = 0.3


@dataclass(frozen=True)
class TokenSettings:
    """One training; lr, patience (in epochs), range and batches are the paper's, the rest it does not say.

    Two dimensions, so that the geometry can be seen as it is; the loss is the contrastive one without normalisation,
    its margin what 16 classes can keep from each other in the square of the tokens.
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
    """A table of tokens, and a layer that pools the bag of a sample; no normalisation after it."""

    def __init__(self, num_tokens: int, settings: TokenSettings) -> None:
        super().__init__()
        self.tokens = nn.Parameter((2 * torch.rand(num_tokens, settings.dim) - 1) * RANGE)
        options: dict[str, Any] = {}
        if settings.pooling == "gsp":
            options = {"prototypes": settings.prototypes, "mu": settings.mu, "epsilon": settings.epsilon}
        self.layer = pooling.create(settings.pooling, settings.dim, **options)
        if isinstance(self.layer, pooling.GSP):
            self.layer.init_prototypes((2 * torch.rand(64 * settings.prototypes, settings.dim) - 1) * RANGE)

    def pool(self, samples: Int64[Tensor, "B N"]) -> Pooled:
        """Look up the tokens of each sample and pool them."""
        return self.layer.pool(self.tokens[samples])

    @torch.no_grad()
    def keep_in_range(self) -> None:
        """Bound the tokens, after every step."""
        self.tokens.clamp_(-RANGE, RANGE)


class Samples(NamedTuple):
    """Bags of token numbers and their classes."""

    bags: Int64[Tensor, "S N"]
    labels: Int64[Tensor, " S"]
    num_tokens: int
    first_background: int


class TokenOutcome(NamedTuple):
    """The best model by validation, its figures on the test samples, and those samples pooled."""

    map_at_r: float
    p_at_1: float
    epochs: int
    background_weight: float
    curve: list[float]
    tokens: Float[Tensor, "T D"]
    pooled: Float[Tensor, "S D"]
    labels: Int64[Tensor, " S"]


def draw_samples(split: Split, settings: TokenSettings) -> Samples:
    """Draw one part of the study as tensors."""
    drawn = data.create("tokens", split=split, samples_per_class=settings.samples_per_class, seed=settings.seed)
    if not isinstance(drawn.images, TokenSamples):
        raise TypeError(f"tokens must give TokenSamples, got {type(drawn.images).__name__}")
    return Samples(drawn.images.samples, drawn.labels, drawn.images.num_tokens, drawn.images.first_background)


def train_tokens(settings: TokenSettings) -> TokenOutcome:
    """Train until validation MAP@R has not grown for 30 epochs; measure the best on test samples."""
    from pytorch_metric_learning.distances import LpDistance
    from pytorch_metric_learning.losses import ContrastiveLoss

    torch.manual_seed(settings.seed)
    parts = {split: draw_samples(split, settings) for split in ("train", "validation", "test")}
    train = parts["train"]
    model = TokenModel(train.num_tokens, settings)
    distance = LpDistance(normalize_embeddings=False, p=2, power=1)
    loss = ContrastiveLoss(pos_margin=0.0, neg_margin=settings.neg_margin, distance=distance)
    optimiser = torch.optim.Adam(model.parameters(), settings.lr)
    batches = ClassBalancedBatches(train.labels, 16, 4, seed=settings.seed, rank=0, world_size=1)
    best, best_state, since, curve = -1.0, model.state_dict(), 0, []
    epoch = 0
    for epoch in range(settings.epochs):
        batches.set_epoch(epoch)
        for rows in batches.plan().flatten(1):
            error = loss(model.pool(train.bags[rows]).pooled, train.labels[rows])
            optimiser.zero_grad()
            error.backward()
            optimiser.step()
            model.keep_in_range()
        since += 1
        if (epoch + 1) % settings.evaluate_every:
            continue
        found = measured(model, parts["validation"])["map@r"]
        curve.append(found)
        if found > best:
            since = 0
            best, best_state = found, {name: value.clone() for name, value in model.state_dict().items()}
        if since >= settings.patience:
            break
    model.load_state_dict(best_state)
    test = parts["test"]
    figures = measured(model, test)
    with torch.no_grad():
        pooled = model.pool(test.bags)
        weights = pooled.weights
        if weights is None:
            raise ValueError(f"the study looks at weights, which {settings.pooling} has not; use gap or gsp")
        background = (weights * (test.bags >= test.first_background)).sum(1).mean()
    return TokenOutcome(
        figures["map@r"],
        figures["p@1"],
        epoch + 1,
        float(background),
        curve,
        model.tokens.detach(),
        pooled.pooled,
        test.labels,
    )


@torch.no_grad()
def measured(model: TokenModel, samples: Samples) -> dict[str, float]:
    """Measure retrieval among samples that were not trained on."""
    return dict(retrieval_metrics(model.pool(samples.bags).pooled, samples.labels, ks=()))
