"""The metric-learning task: its model, loss and optimiser, its batches, and retrieval as the metric it is judged by."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.functional import normalize

from gspool import losses
from gspool.data import ClassBalancedBatches, ShuffledBatches
from gspool.data.image_set import mixed_seed
from gspool.evaluation import retrieval_metrics
from gspool.losses import CrossEntropyLoss, LossParts, MetricLoss, ZSRLoss
from gspool.losses.create import CLASSIFIERS
from gspool.losses.metric_loss import SplitLoss
from gspool.models import Embedder, parameter_groups
from gspool.models.sharing import model_place
from gspool.pooling import GSP
from gspool.pooling.warm_start import WarmStart
from gspool.training.embed import EmbeddedSet, Evaluation, accuracy, embed_images, evaluate_images, searched
from gspool.training.gpu_data import TensorSet, tensor_batches
from gspool.training.loop import Task
from gspool.training.processes import gather_rows, share_buffers
from gspool.training.stream import Batch, seed_step, stream_loader

if TYPE_CHECKING:
    from gspool.data import ImageSet
    from gspool.training.config import LossConfig, ModelConfig, OptimiserConfig, TrainConfig

# Weights of the patches to choose from. Not 0: a part without weight has no gradient.
PATCH_WEIGHTS = (0.05, 0.2, 0.35, 0.5, 0.7, 1.0)


def build_model(config: TrainConfig) -> Embedder:
    """Build the embedding model with weights drawn from the seed of the run, or those that it starts from."""
    model = config.model
    if config.start_from is not None:
        return _loaded_model(config.start_from, model)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(mixed_seed(config.trainer.seed, 0))
        return Embedder(
            model.backbone,
            model.pooling,
            model.dim,
            backbone_options=model.backbone_options,
            pooling_options=model.pooling_options,
            freeze=model.freeze,
            lora=model.lora,
        )


def _loaded_model(place: str, wanted: ModelConfig) -> Embedder:
    model = Embedder.from_pretrained(model_place(place))
    for name in ("backbone", "pooling", "dim"):
        here, there = getattr(wanted, name), getattr(model.settings, name)
        if here != there:
            raise ValueError(
                f"the run starts from {place}, whose {name} is {there!r}, and model.{name} is {here!r}; leave "
                f"--model.{name} out, or start from another model"
            )
    model.freeze(wanted.freeze)
    return model.add_lora(wanted.lora) if wanted.lora.rank else model


def build_loss(
    config: LossConfig, num_classes: int, dim: int, batch_size: int, seed: int, parts: Sequence[int] = ()
) -> MetricLoss:
    """Build the loss for the classes of the training set; the memory of XBM is counted in batches of this run.

    With ``parts``, the lengths of parts that lie side by side in the embedding, every part has a loss of its own. What
    classifies reads them together.
    """
    options = dict(config.options)
    if config.name.startswith("xbm+"):
        options.setdefault("batch_size", batch_size)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(mixed_seed(seed, 1))
        lengths = parts if parts and config.name not in CLASSIFIERS else [dim]
        each = [losses.create(config.name, num_classes, length, config.preset, **options) for length in lengths]
        metric = each[0] if len(each) == 1 else SplitLoss(each, lengths)
        miner = None if config.miner is None else losses.create_miner(config.miner, **config.miner_options)
        if not config.zsr:
            return MetricLoss(metric, miner=miner)
        known = ("dim", "ridge", "scale", "repeats")
        unknown = [name for name in config.zsr_options if name not in known]
        if unknown:
            raise ValueError(
                f"loss.zsr_options has no {', '.join(unknown)}; ZSRLoss has the options {', '.join(known)}"
            )
        return MetricLoss(metric, ZSRLoss(num_classes, **{"dim": dim, **config.zsr_options}), config.zsr, miner)


def build_optimiser(config: OptimiserConfig, module: nn.Module) -> torch.optim.Optimizer:
    """Build the optimiser of a module with the parts ``model`` and ``loss``; the loss's own parameters are proxies."""
    multipliers = dict(config.multipliers)
    if any(name.startswith("loss.metric.") for name, _ in module.named_parameters()):
        multipliers.setdefault("loss.metric", config.proxies)
    groups = parameter_groups(module, config.lr, config.weight_decay, multipliers)
    momentum, squares = config.betas
    if config.name == "sgd":
        return torch.optim.SGD(groups, momentum=momentum, nesterov=True)
    if config.name == "rmsprop":
        from timm.optim import RMSpropTF

        return RMSpropTF(groups, momentum=momentum, alpha=squares, eps=config.eps)
    kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "radam": torch.optim.RAdam}[config.name]
    return kind(groups, betas=config.betas, eps=config.eps)


def plan_batches(config: TrainConfig, labels: torch.Tensor, **place: int) -> ClassBalancedBatches:
    """Return the class-balanced or shuffled batches of a run.

    Raises:
        ValueError: if there are too few classes, or they do not divide among the processes.
    """
    data = config.data
    if data.sampler == "shuffled":
        return ShuffledBatches(labels, data.batch_size, seed=config.trainer.seed, **place)
    return ClassBalancedBatches(
        labels, data.classes_per_batch, data.images_per_class, seed=config.trainer.seed, **place
    )


def with_smaller_batches(config: TrainConfig, labels: torch.Tensor, shown: bool = False) -> TrainConfig:
    """Return the configuration with batches of as many classes, and images of each, as the data has."""
    counts, data = labels.unique(return_counts=True)[1], config.data
    processes = config.trainer.devices * config.trainer.num_nodes
    if data.sampler == "shuffled":
        classes, images = min(data.batch_size, len(labels)) // processes * processes, 1
        told = f"batches of {data.batch_size} images shrink to {classes}: the data has {len(labels)}"
    else:
        classes = min(data.classes_per_batch, len(counts) // processes * processes)
        images = min(data.images_per_class, int(counts.max()))
        told = (
            f"batches of {data.classes_per_batch} classes x {data.images_per_class} images shrink to {classes} x "
            f"{images}: the data has {len(counts)} classes to learn from, of at most {int(counts.max())} images"
        )
    if classes * images in (0, data.batch_size):
        return config
    if shown:
        print(told, flush=True)
    return replace(config, data=replace(data, classes_per_batch=classes, images_per_class=images))


class ModelAndLoss(nn.Module):
    """What learns: the model, and the loss with its proxies."""

    def __init__(self, model: Any, loss: MetricLoss) -> None:
        super().__init__()
        self.model, self.loss = model, loss


class MetricLearning(Task):
    """Train an embedding model, or with `CrossEntropyLoss` a classifier of its pooled features.

    ``model`` is an `Embedder`, or another module with ``embed``, ``freeze`` and ``out_dim``. The monitor looks at
    ``watched``.
    """

    def __init__(
        self,
        model: Any,
        loss: MetricLoss,
        config: TrainConfig,
        train: ImageSet | TensorSet,
        watched: ImageSet | TensorSet | None = None,
        fabric: Any = None,
    ) -> None:
        self.module = ModelAndLoss(model, loss)
        self.model, self.metric_loss, self.config = model, loss, config
        self.train, self.watched, self.fabric = train, watched, fabric
        self.clip = config.optimiser.clip
        self.classifier = loss.metric.classifier if isinstance(loss.metric, CrossEntropyLoss) else None
        if self.classifier is not None:
            self.measures = ("accuracy", "weights_entropy")
        steps_per_epoch = len(plan_batches(config, train.labels, rank=0, world_size=1))
        self.warmup_steps = math.ceil(config.schedule.warmup_epochs * steps_per_epoch)
        self.learning: bool | None = None

    def optimiser(self) -> torch.optim.Optimizer:
        """Return Adam over the parameters of model and loss, each with its own learning rate."""
        return build_optimiser(self.config.optimiser, self.module)

    def batches(self, first: int, last: int) -> Iterable[Batch]:
        """Return this process's part of every batch: from memory of the device, or from a loader."""
        seed, plan = self.config.trainer.seed, plan_batches(self.config, self.train.labels)
        if isinstance(self.train, TensorSet):
            return tensor_batches(self.train, plan, first, last, seed)
        pin = self.fabric is not None and self.fabric.device.type == "cuda"
        return stream_loader(self.train, plan, first, last, seed, self.config.data.workers, pin)

    def before_step(self, step: int) -> None:
        """Freeze the backbone during the warm-up; thaw it afterwards, and compile it where asked."""
        learning = step >= self.warmup_steps
        if self.learning == learning:
            return
        self.learning = learning
        self.model.freeze(self.config.model.freeze if learning else "all")
        # Not earlier: torch 2.11 would go on with the graph of a frozen backbone, which has no gradient.
        if learning and self.config.trainer.compile and hasattr(self.model, "backbone"):
            self.model.backbone.compile()

    def loss(self, batch: Batch, step: int) -> LossParts:
        """Embed this process's images and compute the loss of the batch of all processes."""
        seed = self.config.trainer.seed
        # Until prototypes are chosen, attributes are flat and carry nothing to regularise.
        collecting = open_warm_start(self.model) is not None
        device = batch.images.device
        seed_step(mixed_seed(seed, step, 0 if self.fabric is None else self.fabric.global_rank), device)
        embedded = self.model.embed(_channels_last(batch.images))
        # The same seed on every process: all of them must split the batch of all alike.
        seed_step(mixed_seed(seed, step), device)
        vectors = embedded.pooled if self.metric_loss.classifies else embedded.embedding
        embeddings, labels = gather_rows(vectors), gather_rows(batch.labels)
        loss = self.metric_loss
        with torch.autocast(embeddings.device.type, enabled=False):
            if collecting and loss.zsr is not None:
                metric = loss.metric_part(embeddings, labels)
                # DDP waits for a gradient of every parameter, and Adam decays one that has none.
                idle = sum(0.0 * parameter.sum() for parameter in loss.zsr.parameters())
                return LossParts(total=(1 - loss.zsr_weight) * metric + idle, metric=metric)
            attributes = None if loss.zsr is None else embedded.attributes
            gathered = None if attributes is None else gather_rows(attributes.to(embeddings.dtype))
            return loss(embeddings, labels, gathered)

    def evaluate(self) -> Mapping[str, float]:
        """Measure accuracy or retrieval on the watched set, the entropy of the weights, and what GSP has learned."""
        if self.watched is None:
            return {}
        share_buffers(self.model)
        found: EmbeddedSet | Evaluation
        if self.classifier is None:
            found = self.evaluate_watched()
            figures = dict(found.metrics)
        else:
            options = {"workers": self.config.data.workers, "autocast": self.fabric}
            found = embed_images(self.model, self.watched, classifier=self.classifier, **options)
            figures = {"accuracy": accuracy(found, self.watched)}
        entropy = {} if found.entropy is None else {"weights_entropy": found.entropy}
        return {**figures, **entropy, **learned_values(self.model)}

    def evaluate_watched(self) -> Evaluation:
        """Measure retrieval on the watched set; patches beside a class token get the weight that is best there."""
        assert self.watched is not None
        options = {"workers": self.config.data.workers, "autocast": self.fabric}
        ks, monitor = self.config.output.ks, self.config.trainer.monitor
        found = evaluate_images(self.model, self.watched, ks=ks, **options)
        if not isinstance(self.metric_loss.metric, SplitLoss):
            return found
        head = self.model.head
        token, patches = map(normalize, found.embeddings.split(head.parts, dim=1))
        reached = {}
        for weight in PATCH_WEIGHTS:
            vectors = normalize(torch.cat((token, weight * patches), 1))
            reached[weight] = retrieval_metrics(*searched(vectors, self.watched), ks=ks, device=head.weight.device)
        chosen = max(reached, key=lambda weight: reached[weight][monitor])
        head.weight.fill_(chosen)
        vectors = normalize(torch.cat((token, chosen * patches), 1))
        return found._replace(metrics=reached[chosen], embeddings=vectors)

    def describe(self, batch: Batch) -> str:
        """Name the first images of a batch."""
        return f"the batch begins with {', '.join(self.train.describe(row) for row in batch.rows.tolist()[:4])}"


def _channels_last(images: torch.Tensor) -> torch.Tensor:
    """Lay images out as tensor cores read them; on a CPU, and for tokens, as they are."""
    if images.device.type != "cuda" or images.ndim != 4:
        return images
    return images.contiguous(memory_format=torch.channels_last)


def learned_values(model: nn.Module) -> dict[str, float]:
    """Return mu and epsilon of the model's GSP layer, learned or not; {} if it has none.

    Example:
        >>> learned_values(GSP(8, prototypes=4, mu=0.25, epsilon=5.0))
        {'mu': 0.25, 'epsilon': 5.0}
    """
    layers = [part for part in model.modules() if isinstance(part, GSP)]
    values = {name: getattr(layer, name) for layer in layers for name in ("mu", "epsilon")}
    return {name: float(torch.as_tensor(value).detach()) for name, value in values.items()}


def open_warm_start(model: nn.Module) -> WarmStart | None:
    """Return the warm start of a model that still collects vectors; None if it has none, or its prototypes are set.

    Example:
        >>> open_warm_start(GSP(8, prototypes=4, warm_start=16))
        WarmStart(0 of 16 vectors seen)
        >>> open_warm_start(GSP(8, prototypes=4)) is None
        True
    """
    return next((part for part in model.modules() if isinstance(part, WarmStart) and part.collecting), None)
