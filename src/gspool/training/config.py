"""The configuration of a training run: every setting is a field here, an option and a key of config.yaml."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Any, Literal, get_args, get_type_hints

from gspool.data import list as data_sets
from gspool.features import FeatureConfig
from gspool.models import Freeze, Lora
from gspool.models.freezing import check_freeze


def _refuse(condition: bool, message: str) -> None:
    if condition:
        raise ValueError(message)


def seconds_of(text: str) -> float:
    """Read a duration such as 90s, 30m, 2h or 1h30m; a number alone counts seconds.

    Raises:
        ValueError: if it is not written so, or is not positive.

    Example:
        >>> seconds_of("1h30m"), seconds_of("90")
        (5400.0, 90.0)
    """
    number = r"(\d+(?:\.\d+)?)"
    found = re.fullmatch(rf"(?:{number}h)?(?:{number}m)?(?:{number}s?)?", text)
    units = zip(found.groups(), (3600, 60, 1), strict=True) if found else ()
    total = sum(float(amount or 0) * seconds for amount, seconds in units)
    _refuse(not total > 0, f"a duration is written like 90s, 30m, 2h or 1h30m, got {text!r}")
    return total


@dataclass
class DataConfig:
    """The data.

    Args:
        name: the data set, one of gspool.data.list(); "folder" is your own images.
        root: the folder or the CSV file of the data; generated data needs none.
        options: options of the data set, such as seed, fold (held out for validation), and for your
            own images small_classes, label (leaf or top of nested folders) and duplicates (keep or drop).
        classes_per_batch: different classes in a batch, over all processes together.
        images_per_class: images of each of them; 4 for pair losses, 1 for proxy losses in the paper.
        transform: "crop" crops, resizes and flips at random (the paper's), "shift" moves and flips, or "none".
        transform_options: options of that transform, such as flip; of "crop" also area, ratio, auto_augment, and size
            and resize (null for none) where training sees another size than evaluation.
        check: decode every image before training; "stop" at broken ones, "skip" them, or "none" to not check.
        cache: keep decoded images on disk, so that later epochs do not decode again.
        resident: decode all images once into memory of the device and augment them there; for data that fits.
        workers: processes that load images, at most one per core; 0 loads in the training process.
        sampler: "balanced" draws batches by class; "shuffled" sees every image once an epoch, in batches of
            classes_per_batch x images_per_class images of any class, as classifiers are trained.
    """

    name: str = "glyphs"
    root: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    classes_per_batch: int = 96
    images_per_class: int = 1
    transform: Literal["crop", "shift", "none"] = "none"
    transform_options: dict[str, Any] = field(default_factory=dict)
    check: Literal["stop", "skip", "none"] = "stop"
    cache: bool = False
    resident: bool = False
    workers: int = 0
    sampler: Literal["balanced", "shuffled"] = "balanced"

    def __post_init__(self) -> None:
        _refuse(self.name not in data_sets(), f"there is no data set {self.name!r}; known are {', '.join(data_sets())}")
        for name in ("classes_per_batch", "images_per_class"):
            _refuse(getattr(self, name) < 1, f"data.{name} must be at least 1, got {getattr(self, name)}")
        _refuse(self.workers < 0, f"data.workers must not be negative, got {self.workers}")
        unknown = sorted({*self.transform_options} - {"flip", "shift"})
        _refuse(
            self.resident and bool(unknown),
            f"data.resident augments on the device, which has the options flip and shift; leave out "
            f"data.transform_options.{', '.join(unknown)}, or data.resident",
        )

    @property
    def batch_size(self) -> int:
        """Images in a batch, over all processes together."""
        return self.classes_per_batch * self.images_per_class


@dataclass
class ModelConfig:
    """The model: see gspool.Embedder.

    Args:
        backbone: a name of gspool.models.list_backbones(), such as timm/resnet50.
        backbone_options: its options, such as weights (a file) or pretrained.
        pooling: a name of gspool.pooling.list().
        pooling_options: its options, such as mu, epsilon, prototypes, warm_start.
        dim: length of the embedding; none pools the backbone's features as they are, as classifiers do.
        freeze: frozen part of the backbone: "none", "batchnorm" (with its statistics), "all", or "all-but-N", so that
            the last N blocks learn, "all-but-2" for example.
        lora: low-rank adapters that learn instead of the weights of the backbone.
    """

    backbone: str = "small_cnn"
    backbone_options: dict[str, Any] = field(default_factory=dict)
    pooling: str = "gsp"
    # Chosen on validation classes of glyphs: results/glyphs_choice.json.
    pooling_options: dict[str, Any] = field(
        default_factory=lambda: {"prototypes": 32, "mu": 0.25, "epsilon": 20.0, "warm_start": 1024}
    )
    dim: int | None = 128
    freeze: Freeze = "none"
    lora: Lora = field(default_factory=Lora)

    def __post_init__(self) -> None:
        check_freeze(self.freeze)
        _refuse(
            self.freeze == "all" and self.lora.rank > 0,
            "model.freeze all also freezes the adapters of model.lora; add --model.freeze none",
        )


@dataclass
class HeadConfig:
    """A head on frozen tokens, besides its pooling layer.

    Args:
        start: "identity" starts as the frozen feature (the principal directions of it where the embedding is shorter),
            "whiten" also gives all directions the same variance, "random" draws the embedding.
        prototypes: what GSP's prototypes are chosen from: "tokens" and "means" (of pictures) by k-center, "kmeans" by
            k-means on tokens.
        rate: factor on the learning rate of what is not the embedding: prototypes, queries, scores.
        token_dropout: share of the tokens left out in every training step.
        feature_dropout: share of the channels set to zero in every training step.
    """

    start: Literal["identity", "whiten", "random"] = "identity"
    prototypes: Literal["tokens", "means", "kmeans"] = "tokens"
    rate: float = 1.0
    token_dropout: float = 0.0
    feature_dropout: float = 0.0

    def __post_init__(self) -> None:
        for name in ("start", "prototypes"):  # a grid of `gspool compare` may name any word
            known = get_args(get_type_hints(HeadConfig)[name])
            value = getattr(self, name)
            _refuse(value not in known, f"head.{name} is one of {', '.join(known)}, got {value!r}")
        for name in ("token_dropout", "feature_dropout"):
            value = getattr(self, name)
            _refuse(not 0 <= value < 1, f"head.{name} is a share and must lie in [0, 1), got {value}")
        _refuse(not self.rate >= 0, f"head.rate multiplies a learning rate and must not be negative, got {self.rate}")


@dataclass
class TrainedHeadConfig(HeadConfig):
    """The head of a run on stored tokens, and a first phase of it alone before the whole network learns.

    Args:
        steps: steps of the head alone on stored tokens, before the whole network learns; 0 for a network that learns
            from the first step. With model.freeze all, all steps are of this kind.
        lr: learning rate of that first phase.
    """

    steps: int = 0
    lr: float = 3e-4

    def __post_init__(self) -> None:
        super().__post_init__()
        _refuse(self.steps < 0, f"head.steps must not be negative, got {self.steps}")
        _refuse(not 0 <= self.lr < math.inf, f"head.lr must be finite and not negative, got {self.lr}")


@dataclass
class StoredFeatureConfig(FeatureConfig):
    """The tokens of a frozen backbone, computed once and kept on disk.

    Args:
        enabled: train the head of a frozen backbone on stored tokens; false computes random crops at every step.
    """

    enabled: bool = True


@dataclass
class LossConfig:
    """The loss: see gspool.losses.

    Args:
        name: a name of gspool.losses.list(), or a class of pytorch-metric-learning; cross_entropy trains a classifier.
        preset: row of the paper's table of values, such as cub.
        options: values instead of the preset's.
        miner: a class of pytorch_metric_learning.miners that chooses the pairs of a batch, such as
            MultiSimilarityMiner; none uses all of them.
        miner_options: options of the miner.
        zsr: weight lambda of the zero-shot regularisation; 0 leaves it out, the paper uses 0.1.
        zsr_options: options of ZSRLoss, such as dim, ridge, scale, repeats.
    """

    name: str = "pnca"
    preset: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    miner: str | None = None
    miner_options: dict[str, Any] = field(default_factory=dict)
    zsr: float = 0.0
    zsr_options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _refuse(bool(self.miner_options) and self.miner is None, "loss.miner_options needs loss.miner, a miner's name")
        _refuse(not 0 <= self.zsr <= 1, f"loss.zsr is a weight and must lie in [0, 1], got {self.zsr}")


@dataclass
class OptimiserConfig:
    """The optimiser.

    Args:
        name: "adam" adds weight decay to the gradient (the paper's), "adamw" decouples it, "radam" begins with small
            steps until the squares are known; "sgd" with Nesterov momentum; "rmsprop" as in TensorFlow, with momentum.
        lr: learning rate.
        weight_decay: weight decay of all but normalisation layers.
        betas: decay of Adam's moments; of "sgd" the first is its momentum, of "rmsprop" they are its momentum and the
            decay of the squares.
        eps: epsilon of Adam and "rmsprop".
        clip: largest norm of the gradient; 0 does not clip.
        proxies: factor on the learning rate of the loss's own parameters, its proxies.
        multipliers: factors by part of a parameter's name, such as backbone, head or prototypes.
    """

    name: Literal["adam", "adamw", "radam", "sgd", "rmsprop"] = "adam"
    lr: float = 8e-3
    weight_decay: float = 1e-4
    betas: tuple[float, float] = (0.9, 0.99)
    eps: float = 1e-7
    clip: float = 10.0
    proxies: float = 10.0
    multipliers: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("lr", "weight_decay", "clip", "proxies", "eps"):
            value = getattr(self, name)
            _refuse(not 0 <= value < math.inf, f"optimiser.{name} must be finite and not negative, got {value}")


@dataclass
class ScheduleConfig:
    """The learning rate over time.

    Args:
        name: "constant"; "plateau", which multiplies it by factor when validation stops improving; "cosine" or
            "one-cycle", which rise linearly and then fall to 0 at the last step, along a cosine or a line.
        factor: factor of "plateau".
        patience: evaluations without a better one before the rate falls.
        ramp: share of all steps over which "cosine" and "one-cycle" rise.
        warmup_epochs: passes over the data with the backbone frozen, before all of the model learns.
    """

    name: Literal["constant", "plateau", "cosine", "one-cycle"] = "constant"
    factor: float = 0.5
    patience: int = 4
    ramp: float = 0.1
    warmup_epochs: float = 0.0

    def __post_init__(self) -> None:
        _refuse(not 0 < self.factor < 1, f"schedule.factor must lie between 0 and 1, got {self.factor}")
        _refuse(not 0 <= self.ramp < 1, f"schedule.ramp is a share of the steps in [0, 1), got {self.ramp}")
        _refuse(self.patience < 0, f"schedule.patience must not be negative, got {self.patience}")
        _refuse(self.warmup_epochs < 0, f"schedule.warmup_epochs must not be negative, got {self.warmup_epochs}")


@dataclass
class TrainerConfig:
    """Length, evaluation, devices and precision.

    Args:
        max_steps: steps at most.
        evaluate_every: steps between evaluations; each also writes the last checkpoint.
        checkpoint_every: steps between further checkpoints; 0 writes them with evaluations alone.
        max_time: a time budget for the training, such as 30m, 2h or 1h30m. It ends with the last evaluation that fits,
            and the best model so far is tested and saved; --resume goes on with the same budget again. A first phase
            of the head alone (head.steps) is not counted.
        max_seconds: the same in seconds; 0 sets no limit.
        patience: evaluations without a better one before training stops; none goes on to max_steps.
        monitor: the metric that decides what is better: map@r, p@1, p@r, r@1 ...; accuracy with loss cross_entropy.
        monitor_split: the split it is measured on: "validation", "test" (the conventional protocol), or "none" to keep
            the model of the last step.
        seed: seed of weights, batches and augmentation.
        precision: 32-true, bf16-mixed, 16-mixed or another of Lightning's; auto is bf16-mixed on a GPU, and on a CPU
            with instructions for it, else 32-true.
        accelerator: auto, cpu, gpu or another of Lightning's.
        devices: number of devices; more than one trains by DDP.
        num_nodes: number of machines.
        sync_batchnorm: share statistics of batch norm among GPUs.
        compile: compile the backbone with torch.compile: slower to start, faster per step.
        threads: CPU threads of torch; 0 leaves the choice to torch.
        log_every: steps between rows of metrics.csv.
        progress: show a progress bar.
        ema: decay of a moving average of the weights, such as 0.9999, which is evaluated, kept and saved instead of
            them; 0 keeps the weights themselves.
    """

    max_steps: int = 500
    evaluate_every: int = 100
    checkpoint_every: int = 0
    max_time: str | None = None
    max_seconds: float = 0.0
    patience: int | None = None
    monitor: str = "map@r"
    monitor_split: Literal["validation", "test", "none"] = "validation"
    seed: int = 0
    precision: str = "32-true"
    accelerator: str = "auto"
    devices: int = 1
    num_nodes: int = 1
    sync_batchnorm: bool = False
    compile: bool = False
    threads: int = 0
    log_every: int = 10
    progress: bool = True
    ema: float = 0.0

    def __post_init__(self) -> None:
        if self.max_time is not None:
            self.max_seconds = seconds_of(self.max_time)
        for name, least in (
            ("max_steps", 1),
            ("evaluate_every", 1),
            ("checkpoint_every", 0),
            ("max_seconds", 0),
            ("devices", 1),
            ("num_nodes", 1),
            ("threads", 0),
            ("log_every", 1),
        ):
            value = getattr(self, name)
            _refuse(value < least, f"trainer.{name} must be at least {least}, got {value}")
        _refuse(not 0 <= self.ema < 1, f"trainer.ema is a share and must lie in [0, 1), got {self.ema}")
        _refuse(
            self.patience is not None and self.patience < 1,
            f"trainer.patience counts evaluations and must be at least 1 or none, got {self.patience}",
        )


@dataclass
class OutputConfig:
    """What is written, and where.

    Args:
        folder: the run's folder; without one, runs/DATA-POOLING-LOSS-TIME.
        ks: ranks K of the R@K in the final table.
        report: write report.html.
        embeddings: keep the embeddings of the test images in embeddings.safetensors.
        precision: the wanted precision of threshold.json, the similarity from which two images are called the same;
            none chooses the largest F1 of precision and recall.
    """

    folder: str | None = None
    ks: list[int] = field(default_factory=lambda: [1, 2, 4, 8])
    report: bool = True
    embeddings: bool = False
    precision: float | None = None

    def __post_init__(self) -> None:
        _refuse(
            self.precision is not None and not 0 < self.precision <= 1,
            f"output.precision must lie in (0, 1] or be none, got {self.precision}",
        )


@dataclass
class TrainConfig:
    """All settings of a run.

    Args:
        data: the data.
        model: the model.
        features: the tokens of a frozen backbone.
        head: the head that learns on such tokens.
        loss: the loss.
        optimiser: the optimiser.
        schedule: the learning rate over time.
        trainer: length, evaluation, devices and precision.
        output: what is written, and where.
        baseline: a pooling layer to train the same way for comparison; none trains the model alone.
        start_from: the folder of a run, or of a saved model, whose weights the training starts from.
        from_scratch: train the backbone from random weights. Unless set, random weights are refused for a backbone
            that is published with weights; false always requires weights.
    """

    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    features: StoredFeatureConfig = field(default_factory=StoredFeatureConfig)
    head: TrainedHeadConfig = field(default_factory=TrainedHeadConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    optimiser: OptimiserConfig = field(default_factory=OptimiserConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    output: OutputConfig = field(default_factory=OutputConfig)
    baseline: str | None = None
    start_from: str | None = None
    # Not in the section of the model: finished runs are found again by their sections.
    from_scratch: bool | None = None

    def __post_init__(self) -> None:
        self.check()

    def check(self) -> None:
        """Check settings of several sections together; they may have changed since the configuration was made."""
        _refuse(
            self.loss.zsr > 0 and self.data.sampler == "shuffled",
            f"loss.zsr = {self.loss.zsr} needs two classes in every batch, and data.sampler shuffled may draw one; use "
            "data.sampler balanced, or set loss.zsr to 0",
        )
