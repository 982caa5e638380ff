"""Which pooling layer is best on my pictures? Tokens once, heads on folds x seeds, chosen by validation classes."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import yaml

from gspool import data, pooling
from gspool.data import ImageSet
from gspool.data.image_source import FileImages
from gspool.evaluation.folds import contiguous_folds
from gspool.executor import Executor, Failure, run_tasks
from gspool.features import FeatureConfig, TokenSet
from gspool.files import write_atomic
from gspool.models.device import chosen_device
from gspool.pooling.registry import check_options, without_class_token
from gspool.training.config import (
    DataConfig,
    LossConfig,
    OptimiserConfig,
    ScheduleConfig,
    TrainConfig,
    TrainerConfig,
)
from gspool.training.gpu_data import TensorSet
from gspool.training.heads import FROZEN, HeadConfig, HeadResult, build_head, head_config, train_head

RUNS, TABLE, WINNER = "runs.jsonl", "compare.json", "model"
# Layers that `--layers all` leaves out: their output has a size of its own, or they cannot start near the feature.
DEFAULT_LAYERS = "gap,gmp,gemean,delf,ep,abmilp,gsp,gemean+gsp"
# Chosen on validation classes (docs/frozen.md); the layer's own defaults are those of tuned networks.
FROZEN_DEFAULTS: dict[str, dict[str, Any]] = {
    "gsp": {"mu": 0.1, "epsilon": 20.0, "prototypes": 64},
    "gmp+gsp": {"mu": 0.1, "epsilon": 20.0, "prototypes": 64},
    "gemean+gsp": {"mu": 0.1, "epsilon": 20.0, "prototypes": 64},
}
# Options of a head that `--grid` may vary beside those of its layer.
HEAD_OPTIONS = ("start", "prototypes_from", "rate", "token_dropout", "feature_dropout", "lr", "zsr", "weight_decay")


@dataclass
class CompareConfig:
    """A comparison of heads on one frozen backbone.

    Args:
        data: what to learn from.
        backbone: a name of gspool.models.list_backbones(), such as timm/vit_small_patch14_dinov2.
        backbone_options: its options, such as weights (a file) or pretrained.
        dim: length of the embedding; null keeps the channels of the backbone, so that a head can start as the identity.
        layers: names of pooling layers with commas between, or "all"; NAME+cls adds the class token.
        grid: settings to try, such as gsp.mu=0.05,0.1,0.3; every combination of a layer's settings is a try.
        folds: parts of the training classes, each held out once for validation.
        use_folds: how many of them to train on.
        seeds: seeds with commas between.
        features: how tokens are computed and kept.
        head: how heads start and are regularised.
        loss: what is minimised.
        optimiser: how steps are made.
        schedule: how the learning rate changes.
        trainer: how long, how precisely, on what.
        processes: heads trained side by side.
        ray: address of a Ray cluster ("auto"), "local", or null.
        gpus: share of a GPU of one worker on Ray.
        folder: where results and the chosen model go.
    """

    data: DataConfig = field(
        default_factory=lambda: DataConfig(name="folder", classes_per_batch=32, images_per_class=4)
    )
    backbone: str = "timm/vit_small_patch14_dinov2"
    backbone_options: dict[str, Any] = field(default_factory=dict)
    dim: int | None = None
    layers: str = DEFAULT_LAYERS
    grid: list[str] = field(default_factory=list)
    folds: int = 4
    use_folds: int | None = None
    seeds: str = "0,1,2"
    features: FeatureConfig = field(default_factory=FeatureConfig)
    head: HeadConfig = field(default_factory=HeadConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    optimiser: OptimiserConfig = field(
        default_factory=lambda: OptimiserConfig(lr=3e-4, weight_decay=0.0, betas=(0.9, 0.999), proxies=100.0)
    )
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    trainer: TrainerConfig = field(
        default_factory=lambda: TrainerConfig(max_steps=400, evaluate_every=25, patience=6, progress=False)
    )
    processes: int = 1
    ray: str | None = None
    gpus: float = 0.0
    folder: str | None = None


class Variant(NamedTuple):
    """A layer with settings: one try. ``learn`` is False for the frozen feature itself."""

    layer: str
    options: tuple[tuple[str, Any], ...] = ()
    head: tuple[tuple[str, Any], ...] = ()
    learn: bool = True

    @property
    def name(self) -> str:
        """Name the try as its settings write it.

        Example:
            >>> Variant("gsp", (("mu", 0.1),), (("rate", 10),)).name
            'gsp mu=0.1 rate=10'
        """
        if not self.learn:
            return f"{FROZEN} {self.layer}"
        return " ".join([self.layer, *(f"{name}={value}" for name, value in (*self.options, *self.head))])


class Job(NamedTuple):
    """One training: a try on one fold with one seed."""

    variant: Variant
    fold: int
    seed: int


def variants_of(layers: str, grid: Sequence[str], class_token: bool) -> list[Variant]:
    """List the tries: the frozen features, then every layer with every combination of its grid.

    Raises:
        ValueError: if a layer or an option does not exist, or a setting is not written NAME.OPTION=VALUE,VALUE.

    Example:
        >>> [variant.name for variant in variants_of("gap,gsp", ["gsp.mu=0.1,0.3"], class_token=False)]
        ['frozen gap', 'gap', 'gsp epsilon=20.0 prototypes=64 mu=0.1', 'gsp epsilon=20.0 prototypes=64 mu=0.3']
    """
    names = pooling.list() if layers == "all" else [name.strip() for name in layers.split(",") if name.strip()]
    settings: dict[str, dict[str, list[Any]]] = {}
    for each in grid:
        target, equals, values = each.partition("=")
        layer, dot, option = target.rpartition(".")
        if not (equals and dot and values):
            raise ValueError(
                f"a grid setting is written LAYER.OPTION=VALUE,VALUE, such as gsp.mu=0.1,0.3, got {each!r}"
            )
        if layer not in names:
            raise ValueError(f"the grid names {layer!r}, which is not among the layers {', '.join(names)}")
        settings.setdefault(layer, {})[option] = [yaml.safe_load(value) for value in values.split(",")]
    frozen = [Variant("gap", learn=False), *([Variant("cls", learn=False)] if class_token else [])]
    found = list(frozen)
    for name in names:
        varied = settings.get(name, {})
        base, _ = without_class_token(name)
        fixed = {key: value for key, value in FROZEN_DEFAULTS.get(base, {}).items() if key not in varied}
        for values in itertools.product(*varied.values()):
            chosen = {**fixed, **dict(zip(varied, values, strict=True))}
            head = {key: value for key, value in chosen.items() if key in HEAD_OPTIONS}
            options = {key: value for key, value in chosen.items() if key not in HEAD_OPTIONS}
            check_options(name, options)
            found.append(Variant(name, tuple(options.items()), tuple(head.items())))
    return found


def job_config(config: CompareConfig, job: Job) -> tuple[TrainConfig, HeadConfig]:
    """Return the configuration of one training, with the settings of its try applied."""
    chosen = dict(job.variant.head)
    head = replace(
        config.head,
        **{name: chosen[name] for name in ("start", "rate", "token_dropout", "feature_dropout") if name in chosen},
        **({"prototypes": chosen["prototypes_from"]} if "prototypes_from" in chosen else {}),
    )
    optimiser = replace(
        config.optimiser,
        lr=float(chosen.get("lr", config.optimiser.lr)),
        weight_decay=float(chosen.get("weight_decay", config.optimiser.weight_decay)),
    )
    train = TrainConfig(
        data=config.data,
        loss=replace(config.loss, zsr=float(chosen.get("zsr", config.loss.zsr))),
        optimiser=optimiser,
        schedule=config.schedule,
        trainer=replace(config.trainer, seed=job.seed),
    )
    return train, head


class Tokens(NamedTuple):
    """What every worker trains on: tokens of the learning classes and of the test classes."""

    learning: TokenSet
    test: TokenSet


def learning_set(config: DataConfig) -> ImageSet:
    """Return all pictures to learn from, of which folds hold out validation classes.

    Data that names a validation split of its own gives train and validation together.
    """
    options = {name: value for name, value in config.options.items() if name not in ("fold", "folds")}
    train = data.create(config.name, config.root, "train", **options)
    if "fold" in data.registry.option_names(config.name):
        return train
    try:
        more = data.create(config.name, config.root, "validation", **options)
    except ValueError:
        return train
    names = [*train.class_names, *(name for name in more.class_names if name not in train.class_names)]
    if not isinstance(train.images, FileImages) or not isinstance(more.images, FileImages):
        return train
    number = {name: label for label, name in enumerate(names)}
    labels = [number[part.class_names[label]] for part in (train, more) for label in part.labels.tolist()]
    return ImageSet(FileImages([*train.images.paths, *more.images.paths]), labels, names, name=train.name)


def token_sets(tokens: Tokens, folds: int, fold: int) -> dict[str, TensorSet]:
    """Cut the learning classes into train and validation, every view of a training picture an entry of its own."""
    learning, test = tokens
    fold_classes = contiguous_folds(learning.labels, folds)[fold]
    rows = learning.entries()
    train = TensorSet.of(rows, learning.labels.repeat_interleave(learning.views), name="tokens")
    centre = TensorSet(rows, learning.labels, learning.views * torch.arange(len(learning)), split="validation")
    return {
        "train": train.of_classes(fold_classes.train_classes.tolist()),
        "validation": centre.of_classes(fold_classes.validation_classes.tolist()),
        "test": TensorSet(
            test.entries(),
            test.labels,
            test.views * torch.arange(len(test)),
            split="test",
            queries=_queries(test.images),
        ),
    }


def _queries(images: ImageSet) -> torch.Tensor | None:
    return None if images.roles is None else torch.tensor([role == "query" for role in images.roles])


def train_jobs(config: CompareConfig, tokens: Tokens, device: str, in_memory: bool) -> Callable[[Job], HeadResult]:
    """Make a worker that trains one job after the other on tokens that it loads once."""
    if in_memory:
        tokens.learning.load(device)
        tokens.test.load(device, views=1)
    sets: dict[int, dict[str, TensorSet]] = {}

    def work(job: Job) -> HeadResult:
        if job.fold not in sets:
            sets.clear()
            sets[job.fold] = token_sets(tokens, config.folds, job.fold)
        train, head = job_config(config, job)
        model = build_head(
            job.variant.layer, tokens.learning.layout, config.dim, dict(job.variant.options), head, job.seed
        )
        return train_head(model, head_config(train, model), sets[job.fold], learn=job.variant.learn)

    return work


class RunRecord(NamedTuple):
    """A finished job as compare keeps it, one line of JSON; the state of the head lies beside it."""

    job: str
    variant: str
    layer: str
    fold: int
    seed: int
    found: dict[str, Any]


def job_key(config: CompareConfig, job: Job) -> str:
    """Return a hash of everything that decides the numbers of a job."""
    train, head = job_config(config, job)
    content = {
        "variant": job.variant._asdict(),
        "fold": job.fold,
        "folds": config.folds,
        "dim": config.dim,
        "head": asdict(head),
        "loss": asdict(train.loss),
        "optimiser": asdict(train.optimiser),
        "schedule": asdict(train.schedule),
        "trainer": {
            name: value for name, value in asdict(train.trainer).items() if name not in ("progress", "threads")
        },
        "batch": [config.data.classes_per_batch, config.data.images_per_class],
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()[:16]


def run_jobs(
    config: CompareConfig,
    tokens: Tokens,
    jobs: Sequence[Job],
    folder: Path,
    *,
    device: str | None = None,
    in_memory: bool = True,
    advance: Callable[[RunRecord], None] | None = None,
) -> list[RunRecord]:
    """Train the jobs that ``folder`` does not hold yet, keep each when it ends, and return all of them.

    Raises:
        RuntimeError: if jobs failed, after all others are done.
    """
    folder.mkdir(parents=True, exist_ok=True)
    done = {record.job: record for record in read_runs(folder / RUNS)}
    missing = [job for job in jobs if job_key(config, job) not in done]
    executor = Executor(config.processes, config.ray, config.gpus)
    where = str(device or chosen_device(None))
    failures = []
    for job, result in run_tasks(partial(train_jobs, config, tokens, where, in_memory), missing, executor):
        if isinstance(result, Failure):
            failures.append(f"{job.variant.name}, fold {job.fold}, seed {job.seed}: {result.message}")
            continue
        key = job_key(config, job)
        (folder / "heads").mkdir(exist_ok=True)
        _save_state(folder / "heads" / f"{key}.safetensors", result.state)
        found = {name: value for name, value in result._asdict().items() if name != "state"}
        record = RunRecord(key, job.variant.name, job.variant.layer, job.fold, job.seed, found)
        with (folder / RUNS).open("a", encoding="utf-8") as file:
            file.write(json.dumps(record._asdict()) + "\n")
        done[key] = record
        if advance is not None:
            advance(record)
    if failures:
        raise RuntimeError(
            f"{len(failures)} of {len(missing)} trainings failed; the others are kept.\n" + "\n".join(failures)
        )
    return [done[job_key(config, job)] for job in jobs]


def read_runs(path: Path) -> Iterator[RunRecord]:
    """Yield the finished jobs of a file; a line that a crash cut short does not count."""
    if not path.is_file():
        return
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            yield RunRecord(**json.loads(line))
        except (ValueError, TypeError):
            continue


def _save_state(path: Path, state: Mapping[str, torch.Tensor]) -> None:
    from safetensors.torch import save

    write_atomic(path, save({name: value.contiguous() for name, value in state.items()}))
