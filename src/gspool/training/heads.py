"""Heads on the stored tokens of a frozen backbone: how one starts, how it is trained, how it becomes a model."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from gspool.data.image_set import mixed_seed
from gspool.functional import clip_norm
from gspool.models import Embedder
from gspool.models.embedder import Embedded, embed_features
from gspool.models.pretrained import portable
from gspool.pooling import GSP
from gspool.pooling.class_token import WithClassToken
from gspool.pooling.embedding import LocalEmbedding, PoolThenEmbed, create_embedding
from gspool.training.classify import Classification, ClassificationConfig, top_1
from gspool.training.config import HeadConfig, TrainConfig
from gspool.training.embed import Evaluation, embed_images, evaluate_images
from gspool.training.gpu_data import TensorSet
from gspool.training.loop import LoopOutcome, Task, run_loop
from gspool.training.metric_learning import MetricLearning, build_loss, build_optimiser
from gspool.training.processes import make_fabric

if TYPE_CHECKING:
    from pathlib import Path

    from jaxtyping import Float
    from torch import Tensor

    from gspool.features import TokenLayout
    from gspool.models import Backbone, Freeze
    from gspool.pooling.layer import PoolingLayer

FROZEN, TOP1, CLASSIFIER = "frozen", "top1", "classifier."
# Factor on the learning rate of the classifier, which starts at zero, while the head starts near its goal.
CLASSIFIER_RATE = 10.0
# Tokens that prototypes are chosen from: greedy k-center looks at every one of them for every prototype.
SAMPLED_PICTURES, SAMPLED_TOKENS = 512, 8_192
LLOYD_STEPS = 10
# Pictures whose tokens are evaluated at once: a thousand of a large map would take gigabytes.
EVALUATED = 128


class TokenHead(nn.Module):
    """What an `Embedder` does after its backbone, on packed tokens [B, prefix + N, C] of a store.

    Example:
        >>> from gspool.features import TokenLayout
        >>> layout = TokenLayout(1, 1, True, 4, 8, (2, 2), "fp32")
        >>> model = TokenHead(create_embedding("gap", 8, 4), layout)
        >>> model.embed(torch.rand(3, 5, 8)).embedding.shape
        torch.Size([3, 4])
    """

    def __init__(self, head: PoolingLayer, layout: TokenLayout, config: HeadConfig | None = None) -> None:
        super().__init__()
        self.head, self.layout, self.config = head, layout, config or HeadConfig()

    @property
    def out_dim(self) -> int:
        """Length of the embedding."""
        return self.head.out_dim

    def freeze(self, freeze: Freeze) -> TokenHead:
        """Change nothing: there is no backbone here, and the head always learns."""
        return self

    def embed(self, rows: Float[Tensor, "B T C"]) -> Embedded:
        """Embed stored tokens as unit vectors."""
        features, class_token = self.features(rows)
        return embed_features(self.head, features, class_token)

    def forward(self, rows: Float[Tensor, "B T C"]) -> Float[Tensor, "B D"]:
        """Embed as unit vectors."""
        return self.embed(rows).embedding

    def features(self, rows: Float[Tensor, "B T C"]) -> tuple[Tensor, Tensor | None]:
        """Return the patch tokens, as a map where they form one, and the class token, where there is one."""
        if not torch.is_autocast_enabled(rows.device.type):
            rows = rows.to(torch.promote_types(rows.dtype, torch.float32))
        if self.training and self.config.feature_dropout:
            rows = rows * F.dropout(torch.ones_like(rows[:, :1]), self.config.feature_dropout)
        class_token = rows[:, 0] if self.layout.class_token else None
        tokens = rows[:, self.layout.prefix :]
        if self.training and self.config.token_dropout:
            kept = max(1, round((1 - self.config.token_dropout) * tokens.shape[1]))
            chosen = torch.rand(tokens.shape[:2], device=tokens.device).argsort(1)[:, :kept]
            return tokens.gather(1, chosen[..., None].expand(-1, -1, tokens.shape[2])), class_token
        if self.layout.grid is None:
            return tokens, class_token
        return tokens.mT.unflatten(2, self.layout.grid), class_token


@torch.no_grad()
def start_head(model: TokenHead, sample: Float[Tensor, "P T C"], seed: int = 0) -> None:
    """Start a head near the frozen feature, and its prototypes from what the pictures hold.

    Embeddings of the backbone's channels become the identity, or, where they are shorter, the principal directions of
    the frozen feature: the mean of the patch tokens, and for the projection of the class token the class token.
    """
    rows = sample.float()
    tokens = rows[:, model.layout.prefix :]
    config, head = model.config, model.head
    if config.start != "random":
        for name, part in head.named_modules():
            if isinstance(part, LocalEmbedding) and part.in_features == rows.shape[2]:
                is_class_token = head.takes_class_token and not isinstance(head, WithClassToken)
                of_class_token = model.layout.class_token and (name == "project" or is_class_token)
                frozen = rows[:, 0] if of_class_token else tokens.mean(1)
                part.weight.copy_(principal_directions(frozen, part.out_features, config.start == "whiten"))
    base = head.layer if isinstance(head, WithClassToken) else head
    generator = torch.Generator().manual_seed(seed)
    for layer in (part for part in head.modules() if isinstance(part, GSP)):
        candidates = tokens.mean(1) if config.prototypes == "means" else tokens.flatten(0, 1)
        order = torch.randperm(len(candidates), generator=generator)[:SAMPLED_TOKENS]
        chosen = candidates[order.to(candidates.device)]
        # The layer stands behind an embedding unless it comes first, or has keys of its own, which it applies itself.
        comes_first = isinstance(base, PoolThenEmbed) or layer.key is not None
        embed = None if comes_first else getattr(base, "embed", None)
        chosen = chosen if embed is None else embed(chosen)
        if config.prototypes == "kmeans" and len(chosen) >= len(layer.prototypes):
            # Lloyd's steps begin at tokens drawn at random: k-center picks outliers, and some centres would stay there.
            keys = clip_norm(chosen if layer.key is None else layer.key(chosen))
            layer.prototypes.copy_(_lloyd(keys, keys[: len(layer.prototypes)]))
        else:
            layer.init_prototypes(chosen)  # refuses too few


def start_from(model: TokenHead, train: TensorSet, device: torch.device, seed: int) -> None:
    """Put a head on its device and start it from a sample of its training set."""
    places = torch.randperm(len(train), generator=torch.Generator().manual_seed(seed))[:SAMPLED_PICTURES]
    start_head(model.to(device), train.evaluation_images(places).to(device), seed)


def principal_directions(features: Float[Tensor, "P C"], count: int, whiten: bool = False) -> Float[Tensor, "K C"]:
    """Return the directions of largest second moment, or the identity where all are wanted and none is rescaled.

    Moments are taken about zero, because embeddings are compared by the angle at zero.

    Example:
        >>> principal_directions(torch.tensor([[0.0, 3.0], [0.0, -1.0], [1.0, 0.0]]), 1).abs()
        tensor([[0., 1.]])
    """
    channels = features.shape[1]
    if count == channels and not whiten:
        return torch.eye(channels, device=features.device)
    moments = features.double().T @ features.double() / len(features)
    values, vectors = torch.linalg.eigh(moments)
    kept = vectors.flip(1)[:, :count].T
    if whiten:
        scale = values.flip(0)[:count].clamp(min=1e-6 * float(values.max())).rsqrt()
        kept = kept * scale[:, None]
    out = torch.zeros(count, channels, dtype=features.dtype, device=features.device)
    out[: len(kept)] = kept.to(out.dtype)
    return out


def _lloyd(points: Float[Tensor, "P D"], centres: Float[Tensor, "M D"]) -> Float[Tensor, "M D"]:
    """Run k-means from given centres; an empty cluster keeps its centre."""
    centres = centres.clone()
    for _ in range(LLOYD_STEPS):
        nearest = torch.cdist(points, centres).argmin(1)
        counts = torch.bincount(nearest, minlength=len(centres))
        sums = torch.zeros_like(centres).index_add_(0, nearest, points)
        centres = torch.where(counts[:, None] > 0, sums / counts[:, None].clamp(min=1), centres)
    return centres


class HeadResult(NamedTuple):
    """A trained head: metrics on validation and test (in [0, 1]), and its state at the best step.

    Metrics are those of retrieval, or ``top1`` of a classifier, whose weights then are part of the state.
    """

    validation: dict[str, float]
    test: dict[str, float]
    best_step: int
    steps: int
    entropy: float | None
    parameters: int
    seconds: float
    state: dict[str, Tensor]


def build_head(
    pooling: str, layout: TokenLayout, dim: int | None, options: Mapping[str, Any], config: HeadConfig, seed: int
) -> TokenHead:
    """Build a head with weights drawn from a seed; ``dim`` None keeps the channels of the backbone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(mixed_seed(seed, 0))
        head = create_embedding(pooling, layout.channels, dim or layout.channels, **options)
    if head.takes_class_token and not layout.class_token:
        raise ValueError(f"{pooling} needs a class token, which this backbone does not have; leave it out")
    return TokenHead(head, layout, config)


def train_head(
    model: TokenHead,
    config: TrainConfig,
    sets: Mapping[str, TensorSet],
    *,
    learn: bool = True,
    folder: Path | None = None,
) -> HeadResult:
    """Start a head, train it, and measure it at its best step; ``learn=False`` measures it as it starts.

    The state before the first step takes part in the choice, so that training never ends with a head that is worse on
    the validation classes than the one it started from.

    Args:
        model: from `build_head`.
        config: batches, loss, optimiser, schedule and trainer are used.
        sets: train (every view an entry), validation and test.
        folder: where checkpoints go, and where an interrupted training goes on; None keeps nothing.
    """
    fabric = make_fabric(config.trainer)
    train, validation, test = (sets[name] for name in ("train", "validation", "test"))

    def measured(images: TensorSet) -> Evaluation:
        return evaluate_images(model, images, ks=config.output.ks, autocast=fabric)

    start_from(model, train, fabric.device, config.trainer.seed)
    best_step, steps, seconds = 0, 0, 0.0
    if learn:
        loss = build_loss(
            config.loss, train.num_classes, model.out_dim, config.data.batch_size, config.trainer.seed, model.head.parts
        ).to(fabric.device)
        task = MetricLearning(model, loss, config, train, validation, fabric)
        first = reached = task.evaluate_watched().metrics
        started = {name: value.clone() for name, value in model.state_dict().items()}
        outcome = _run_silently(task, fabric, config, folder)
        steps, seconds = outcome.steps, outcome.seconds
        if outcome.best_value is not None and outcome.best_value > first[config.trainer.monitor]:
            best_step, reached = outcome.best_step, measured(validation).metrics
        else:
            model.load_state_dict(started)
    else:
        reached = measured(validation).metrics
    tested = measured(test)
    return HeadResult(
        validation=dict(reached),
        test=dict(tested.metrics),
        best_step=best_step,
        steps=steps,
        entropy=tested.entropy,
        parameters=sum(parameter.numel() for parameter in model.parameters()) if learn else 0,
        seconds=seconds,
        state={name: value.cpu() for name, value in model.state_dict().items()},
    )


def _run_silently(task: Task, fabric: Any, config: TrainConfig, folder: Path | None = None) -> LoopOutcome:
    """Train without a log between evaluations: reading the loss would make the GPU wait."""
    trainer = replace(config.trainer, log_every=config.trainer.evaluate_every)
    return run_loop(task, fabric, trainer, config.schedule, folder)


def head_config(config: TrainConfig, model: TokenHead, prefix: str = "model") -> TrainConfig:
    """Return the configuration with the learning rate of prototypes, queries and scores multiplied by ``head.rate``.

    Embeddings, and the scale of patch tokens beside a class token, keep the rate of the optimiser. ``prefix`` is what
    the trained module calls the head.
    """
    rate = model.config.rate
    if rate == 1:
        return config
    kept = {
        f"{name}.{'scale' if isinstance(part, WithClassToken) else 'weight'}"
        for name, part in model.named_modules()
        if isinstance(part, WithClassToken) or (isinstance(part, LocalEmbedding) and "key" not in name)
    }
    own = {f"{prefix}.{name}": rate for name, _ in model.named_parameters() if name not in kept}
    multipliers = {**config.optimiser.multipliers, **own}
    return replace(config, optimiser=replace(config.optimiser, multipliers=multipliers))


class LinearProbe(nn.Module):
    """A head and a linear classifier, which sees the unit vector of the head times the root of its length.

    So its inputs have a mean square of 1, whatever the backbone. It starts at zero: all classes alike.
    """

    def __init__(self, head: TokenHead, classes: int) -> None:
        super().__init__()
        self.head, self.scale = head, math.sqrt(head.out_dim)
        self.classifier = nn.Linear(head.out_dim, classes)
        nn.init.zeros_(self.classifier.weight)
        nn.init.zeros_(self.classifier.bias)

    def forward(self, rows: Float[Tensor, "B T C"]) -> Float[Tensor, "B K"]:
        """Compute the logits of stored tokens."""
        return self.classifier(self.scale * self.head(rows))

    def state(self) -> dict[str, Tensor]:
        """Return the head, and a classifier of its embeddings: logits are ``weight @ embedding + bias``."""
        return {
            **{name: value.cpu() for name, value in self.head.state_dict().items()},
            f"{CLASSIFIER}weight": self.scale * self.classifier.weight.detach().cpu(),
            f"{CLASSIFIER}bias": self.classifier.bias.detach().cpu(),
        }


class Probing(Classification):
    """Train a `LinearProbe` with the optimiser and the batch size of a training configuration."""

    measures = (TOP1,)

    def __init__(self, probe: LinearProbe, config: TrainConfig, train: TensorSet, watched: TensorSet) -> None:
        size = min(config.data.batch_size, len(train))
        settings = ClassificationConfig(batch_size=size, clip=config.optimiser.clip)
        super().__init__(probe, train, watched, settings, config.trainer.seed)
        self.optimiser_config = config.optimiser

    def optimiser(self) -> torch.optim.Optimizer:
        """Return Adam; the classifier has a learning rate of its own."""
        return build_optimiser(self.optimiser_config, self.module)

    def evaluate(self) -> Mapping[str, float]:
        """Measure top-1 accuracy on the validation pictures."""
        assert self.watched is not None
        return {TOP1: top_1(self.module, self.watched, EVALUATED)}


def train_probe(
    model: TokenHead, config: TrainConfig, sets: Mapping[str, TensorSet], *, learn: bool = True
) -> HeadResult:
    """Train a head with a linear classifier, and measure top-1 accuracy at the best validation step.

    Arguments are those of `train_head`; ``learn=False`` trains the classifier alone.
    """
    train, validation, test = (sets[name] for name in ("train", "validation", "test"))
    fabric = make_fabric(config.trainer)
    start_from(model, train, fabric.device, config.trainer.seed)
    probe = LinearProbe(model, 1 + int(max(each.labels.max() for each in sets.values()))).to(fabric.device)
    if not learn:
        model.requires_grad_(False)
    multipliers = {"classifier": CLASSIFIER_RATE, **config.optimiser.multipliers}
    config = replace(
        config,
        optimiser=replace(config.optimiser, multipliers=multipliers),
        trainer=replace(config.trainer, monitor=TOP1),
    )
    outcome = _run_silently(Probing(probe, config, train, validation), fabric, config)
    trained = [*(model.parameters() if learn else ()), *probe.classifier.parameters()]
    return HeadResult(
        validation={TOP1: outcome.best_value or 0.0},
        test={TOP1: top_1(probe, test, EVALUATED)},
        best_step=outcome.best_step,
        steps=outcome.steps,
        entropy=embed_images(model, test).entropy,
        parameters=sum(parameter.numel() for parameter in trained),
        seconds=outcome.seconds,
        state=probe.state(),
    )


def as_embedder(
    backbone: Backbone,
    name: str,
    backbone_options: Mapping[str, Any],
    pooling: str,
    dim: int,
    options: Mapping[str, Any],
    state: Mapping[str, Tensor],
) -> Embedder:
    """Join a frozen backbone and a trained head to an ordinary model that embeds images."""
    # Without where its weights came from: they are copied, and need not be there any more.
    own = portable(backbone_options)
    model = Embedder(name, pooling, dim, backbone_options=own, pooling_options=dict(options), freeze="all")
    model.backbone.load_state_dict(backbone.state_dict())
    model.head.load_state_dict({key.removeprefix("head."): state[key] for key in state if key.startswith("head.")})
    return model.eval()
