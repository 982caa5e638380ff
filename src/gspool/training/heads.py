"""Heads on the stored tokens of a frozen backbone: how one starts, how it is trained, how it becomes a model."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from gspool.data.image_set import mixed_seed
from gspool.functional import clip_norm
from gspool.models import Embedder
from gspool.models.embedded import Embedded, embed_features
from gspool.pooling import GSP
from gspool.pooling.class_token import WithClassToken
from gspool.pooling.embedding import LocalEmbedding, PoolThenEmbed, create_embedding
from gspool.training.build import build_loss
from gspool.training.config import HeadConfig, TrainConfig
from gspool.training.embed import evaluate_images
from gspool.training.gpu_data import TensorSet
from gspool.training.launch import make_fabric
from gspool.training.loop import run_loop
from gspool.training.metric_learning import MetricLearning

if TYPE_CHECKING:
    from pathlib import Path

    from jaxtyping import Float
    from torch import Tensor

    from gspool.features import TokenLayout
    from gspool.models import Backbone, Freeze
    from gspool.pooling.layer import PoolingLayer

FROZEN = "frozen"
# Tokens that prototypes are chosen from: greedy k-center looks at every one of them for every prototype.
SAMPLED_PICTURES, SAMPLED_TOKENS = 512, 8_192
LLOYD_STEPS = 10


class TokenHead(nn.Module):
    """What an `Embedder` does after its backbone, on packed tokens [B, prefix + N, C] of a store.

    Args:
        head: pooling layer and embedding.
        layout: of the tokens.
        config: dropout in training.

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

    Args:
        model: the head, changed in place.
        sample: tokens of some training pictures.
        seed: chooses tokens among them.
    """
    rows = sample.float()
    tokens = rows[:, model.layout.prefix :]
    config, head = model.config, model.head
    if config.start != "random":
        for name, part in head.named_modules():
            if isinstance(part, LocalEmbedding) and part.in_features == rows.shape[2]:
                of_class_token = model.layout.class_token and (name == "project" or _is_class_token(head))
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
        layer.init_prototypes(chosen)
        if config.prototypes == "kmeans":
            # Lloyd's steps begin at tokens drawn at random: k-center picks outliers, and some centres would stay there.
            keys = clip_norm(chosen if layer.key is None else layer.key(chosen))
            layer.prototypes.copy_(_lloyd(keys, keys[: len(layer.prototypes)]))


def start_from(model: TokenHead, train: TensorSet, device: torch.device, seed: int) -> None:
    """Put a head on its device and start it from a sample of its training set."""
    places = torch.randperm(len(train), generator=torch.Generator().manual_seed(seed))[:SAMPLED_PICTURES]
    start_head(model.to(device), train.evaluation_images(places).to(device), seed)


def _is_class_token(head: PoolingLayer) -> bool:
    return head.takes_class_token and not isinstance(head, WithClassToken)


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
    """Build a head with weights drawn from a seed; ``dim`` None keeps the channels of the backbone.

    Raises:
        ValueError: if the layer, an option or the tokens do not fit.
    """
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

    Raises:
        ValueError: if a setting does not fit.
    """
    fabric = make_fabric(config.trainer)
    train, validation, test = (sets[name] for name in ("train", "validation", "test"))
    start_from(model, train, fabric.device, config.trainer.seed)
    first = evaluate_images(model, validation, ks=config.output.ks, autocast=fabric).metrics
    best_step, steps, seconds = 0, 0, 0.0
    if learn:
        started = {name: value.clone() for name, value in model.state_dict().items()}
        loss = build_loss(
            config.loss, train.num_classes, model.out_dim, config.data.batch_size, config.trainer.seed
        ).to(fabric.device)
        task = MetricLearning(model, loss, config, train, validation, fabric)
        # Nothing is logged between evaluations, and reading the loss would make the GPU wait.
        trainer = replace(config.trainer, log_every=config.trainer.evaluate_every)
        outcome = run_loop(task, fabric, trainer, config.schedule, folder)
        best_step, steps, seconds = outcome.best_step, outcome.steps, outcome.seconds
        monitor = config.trainer.monitor
        if outcome.best_value is None or outcome.best_value <= first[monitor]:
            model.load_state_dict(started)
            best_step = 0
    watched = evaluate_images(model, validation, ks=config.output.ks, autocast=fabric).metrics if best_step else first
    measured = evaluate_images(model, test, ks=config.output.ks, autocast=fabric)
    return HeadResult(
        validation=dict(watched),
        test=dict(measured.metrics),
        best_step=best_step,
        steps=steps,
        entropy=measured.entropy,
        parameters=sum(parameter.numel() for parameter in model.parameters()) if learn else 0,
        seconds=seconds,
        state={name: value.cpu() for name, value in model.state_dict().items()},
    )


def head_config(config: TrainConfig, model: TokenHead, prefix: str = "model") -> TrainConfig:
    """Return the configuration with the learning rate of everything but the embedding multiplied by ``head.rate``.

    ``prefix`` is what the trained module calls the head.
    """
    changed = deepcopy(config)
    embeddings = {
        f"{name}.weight"
        for name, part in model.named_modules()
        if isinstance(part, LocalEmbedding) and "key" not in name
    }
    own = [name for name, _ in model.named_parameters() if name not in embeddings]
    if model.config.rate != 1:
        changed.optimiser.multipliers = {
            **changed.optimiser.multipliers,
            **{f"{prefix}.{name}": model.config.rate for name in own},
        }
    return changed


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
    model = Embedder(name, pooling, dim, backbone_options=backbone_options, pooling_options=dict(options), freeze="all")
    model.backbone.load_state_dict(backbone.state_dict())
    model.head.load_state_dict({key.removeprefix("head."): state[key] for key in state if key.startswith("head.")})
    return model.eval()
